// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"log/slog"
	"slices"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

// problemList knows what is wrong and logs each problem once, when it appears.
type problemList struct {
	logger *slog.Logger
	// events is told all problems when any come or go, if set.
	events   EventRecorder
	objects  []convert.Problem
	rejected []convert.Problem
	logged   map[convert.Problem]struct{}
}

// setObjects replaces the problems of objects.
func (l *problemList) setObjects(lists ...[]convert.Problem) {
	l.objects = slices.Concat(lists...)
	l.log()
}

// setRejected replaces what the kernel refused.
func (l *problemList) setRejected(rejected []dataplane.Rejection) {
	if len(rejected) == 0 && len(l.rejected) == 0 {
		return
	}
	l.rejected = l.rejected[:0]
	for _, r := range rejected {
		name := convert.Name{Namespace: r.Key.Namespace, Name: r.Key.Name}
		l.rejected = append(l.rejected, convert.Problem{
			Object:  convert.Key{Kind: convert.KindService, Name: name}.String(),
			Field:   "port " + r.Key.String(),
			Message: "the kernel refused it: " + r.Err.Error(),
		})
	}
	l.log()
}

// all returns all problems, sorted.
func (l *problemList) all() []convert.Problem {
	all := slices.Concat(l.objects, l.rejected)
	slices.SortFunc(all, convert.Problem.Compare)
	return all
}

func (l *problemList) counts() ProblemCounts {
	return ProblemCounts{Objects: len(l.objects), Rejected: len(l.rejected)}
}

func (l *problemList) log() {
	all := l.all()
	logged := make(map[convert.Problem]struct{}, len(all))
	news := false
	for _, problem := range all {
		if _, known := l.logged[problem]; !known {
			LogProblem(l.logger, problem)
			news = true
		}
		logged[problem] = struct{}{}
	}
	if l.events != nil && (news || len(logged) != len(l.logged)) {
		l.events.SetProblems(all)
	}
	l.logged = logged
}

// LogProblem writes a problem to the log, each part that is there as an attribute
// of its own.
func LogProblem(logger *slog.Logger, p convert.Problem) {
	var attrs []any
	for _, a := range []struct{ key, value string }{
		{"file", p.File}, {"object", p.Object}, {"field", p.Field}, {"problem", p.Message},
	} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.key, a.value))
		}
	}
	logger.Error("not served as written", attrs...)
}
