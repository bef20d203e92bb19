// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"reflect"
	"slices"
)

// kube-proxy's modes for Linux.
const (
	modeNFTables = "nftables"
	modeIPTables = "iptables"
	modeIPVS     = "ipvs"
)

// ignored returns the fields that are set and mean nothing here, by the names that
// they have in a file.
func ignored(in *fileConfig) []string {
	var fields []string
	if in.Mode == modeIPTables || in.Mode == modeIPVS {
		fields = append(fields, "mode "+string(in.Mode))
	}
	for _, gate := range slices.Sorted(maps.Keys(in.FeatureGates)) {
		if gate != localhostGate {
			fields = append(fields, "featureGates."+gate)
		}
	}
	rest := *in
	if in.Mode != modeNFTables {
		// The one setting of the other modes that is taken over.
		rest.IPTables.MasqueradeAll = false
	}
	for _, group := range []struct {
		name   string
		fields any
	}{
		{"iptables.", rest.IPTables},
		{"ipvs.", rest.IPVS},
		{"winkernel.", rest.Winkernel},
		{"nftables.", struct {
			MasqueradeBit *int32 `json:"masqueradeBit"`
		}{rest.NFTables.MasqueradeBit}},
		{"", struct {
			ConfigSyncPeriod            any    `json:"configSyncPeriod"`
			PortRange                   string `json:"portRange"`
			ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion"`
			WindowsRunAsService         bool   `json:"windowsRunAsService"`
		}{nilIfZero(rest.ConfigSyncPeriod), rest.PortRange, rest.ShowHiddenMetricsForVersion, rest.WindowsRunAsService}},
	} {
		fields = append(fields, setFields(group.name, reflect.ValueOf(group.fields))...)
	}
	return fields
}

func nilIfZero(value any) any {
	if reflect.ValueOf(value).IsZero() {
		return nil
	}
	return value
}

// setFields names the fields of a struct that are not zero.
func setFields(prefix string, of reflect.Value) []string {
	var names []string
	for i := range of.NumField() {
		if !of.Field(i).IsZero() {
			names = append(names, prefix+of.Type().Field(i).Tag.Get("json"))
		}
	}
	return names
}
