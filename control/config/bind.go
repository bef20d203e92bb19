// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// fileConfig is kube-proxy's part of a file.
type fileConfig = kubeproxy.KubeProxyConfiguration

// binding has a flag stand for a field of the file.
type binding struct {
	flag string
	// field returns a pointer to the field.
	field func(*fileConfig) any
	// value returns what the flag says, in the type of the field.
	value func() any
}

func bind[T any](flag string, field func(*fileConfig) *T, value *T) binding {
	return binding{flag, func(in *fileConfig) any { return field(in) }, func() any { return *value }}
}

// bindPointer is for fields that tell zero from nothing.
func bindPointer[T any](flag string, field func(*fileConfig) **T, value *T) binding {
	return binding{flag, func(in *fileConfig) any { return field(in) }, func() any { return value }}
}

// bindDuration is for durations, which have a type of their own in a file.
func bindDuration(flag string, field func(*fileConfig) *metav1.Duration, value *time.Duration) binding {
	return binding{flag, func(in *fileConfig) any { return field(in) }, func() any { return metav1.Duration{Duration: *value} }}
}

// bindTimeout is for durations that tell zero from nothing.
func bindTimeout(flag string, field func(*fileConfig) **metav1.Duration, value *time.Duration) binding {
	return binding{flag, func(in *fileConfig) any { return field(in) }, func() any { return &metav1.Duration{Duration: *value} }}
}

// bindAddress is for addresses of which the flag's empty one serves nowhere and the
// file's stands for the default.
func bindAddress(flag string, field func(*fileConfig) *string, value *string) binding {
	return binding{flag, func(in *fileConfig) any { return field(in) }, func() any {
		if *value == "" {
			return serveNowhere
		}
		return *value
	}}
}

// override has the flags that were given go before the file, and returns those that
// contradict it.
func (f *Flags) override(in *fileConfig) []string {
	var contradicting []string
	for _, b := range f.bindings() {
		if !f.set.Changed(b.flag) {
			continue
		}
		field, value := reflect.ValueOf(b.field(in)).Elem(), reflect.ValueOf(b.value())
		if !field.IsZero() && !reflect.DeepEqual(field.Interface(), value.Interface()) {
			contradicting = append(contradicting, "--"+b.flag)
		}
		field.Set(value)
	}
	return contradicting
}
