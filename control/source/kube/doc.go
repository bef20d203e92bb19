// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package kube reads Kubernetes objects from an API server and follows their
// changes.
//
// Services and EndpointSlices that are another proxy's or headless are left out by
// the server, as kube-proxy asks it; of the Nodes only one is watched. Each object
// is converted as soon as it is decoded and the original let go of, so that memory
// is in proportion to what a proxy needs: client-go's reflectors feed a store that
// holds converted objects only, where a shared informer would hold each a second
// time.
//
// Nothing is handed over before all kinds were listed once. From then on nothing
// that was handed over is lost because the API server is away, slow or has
// forgotten where a watch was: the last objects stay, [source.Batch] says what
// cannot be reached, and what was missed meanwhile is in the next batch. Changes
// that come while a batch is being handled are in one batch together; a single one
// is handed over at once.
//
// All callbacks of a [Source] come from the goroutine that called Run or Load.
package kube
