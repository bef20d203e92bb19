// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

// Package health says how well this node serves. [Proxy] knows whether changes
// reach the kernel in time. [Server] answers on the healthCheckNodePort of each
// Service of type LoadBalancer with externalTrafficPolicy Local, where load
// balancers ask which nodes have endpoints.
//
// All methods are safe for concurrent use. A port that cannot be listened on is
// logged, tried again, and never in the way of others.
package health
