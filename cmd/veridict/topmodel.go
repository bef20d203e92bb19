// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// topModel is what veridict top knows and shows: events change it, lines draws it.
type topModel struct {
	delay time.Duration
	// width and height are in characters. Height 0 is for a pipe: all rows, and
	// nothing about keys.
	width, height int

	order  topOrder
	filter string
	// editing says that keys are text of the filter.
	editing bool
	// offset is the number of rows above the first that is shown.
	offset int
	quit   bool

	sample *topSample
	frame  *topFrame
	// rows are those that match, sorted.
	rows []*topRow

	// now is when the last event with a time came, taken when the last sample did.
	now, taken time.Time
	// gone is why the agent does not answer, nil if it does.
	gone error
}

func newTopModel(delay time.Duration, filter string) *topModel {
	return &topModel{delay: delay, width: columns, order: byRate, filter: filter}
}

// take is the event that the agent has answered.
func (m *topModel) take(s *topSample, now time.Time) {
	m.frame = newTopFrame(s, m.sample)
	m.sample, m.gone = s, nil
	m.now, m.taken = now, now
	m.arrange()
}

// fail is the event that it has not.
func (m *topModel) fail(err error, now time.Time) {
	m.gone, m.now = err, now
	m.scroll(0)
}

// tick is the event that time went by.
func (m *topModel) tick(now time.Time) {
	m.now = now
	m.scroll(0)
}

// resize is the event that the terminal has another size.
func (m *topModel) resize(width, height int) {
	m.width, m.height = width, height
	m.scroll(0)
}

// press is the event that a key was pressed.
func (m *topModel) press(key topKey) {
	switch {
	case key == keyInterrupt:
		m.quit = true
	case m.scrollKey(key):
	case m.editing:
		m.edit(key)
	default:
		m.command(key)
	}
}

func (m *topModel) command(key topKey) {
	switch key {
	case 'q', 'Q':
		m.quit = true
	case 's':
		m.sortBy(byRate)
	case 'u':
		m.sortBy(byEvidence)
	case 'n':
		m.sortBy(byName)
	case '/':
		m.editing = true
	case keyEscape:
		m.setFilter("")
	}
}

func (m *topModel) edit(key topKey) {
	switch {
	case key == keyEnter:
		m.editing = false
	case key == keyEscape:
		m.editing = false
		m.setFilter("")
	case key == keyErase:
		_, size := utf8.DecodeLastRuneInString(m.filter)
		m.setFilter(m.filter[:len(m.filter)-size])
	case key == keyEraseAll:
		m.setFilter("")
	case key > 0 && len(m.filter) < maxFilter:
		m.setFilter(m.filter + string(rune(key)))
	}
}

// maxFilter is the length of the longest name with its namespace and port.
const maxFilter = 63 + 1 + 63 + 1 + 63

// scrollKey says whether the key is one that scrolls, and does so.
func (m *topModel) scrollKey(key topKey) bool {
	page := max(m.room(), 1)
	switch key {
	case keyUp:
		m.scroll(-1)
	case keyDown:
		m.scroll(1)
	case keyPageUp:
		m.scroll(-page)
	case keyPageDown:
		m.scroll(page)
	case keyHome:
		m.scroll(-len(m.rows))
	case keyEnd:
		m.scroll(len(m.rows))
	default:
		return false
	}
	return true
}

// scroll moves by so many rows, as far as there are some.
func (m *topModel) scroll(by int) {
	m.offset = max(min(m.offset+by, len(m.rows)-m.room()), 0)
}

func (m *topModel) sortBy(order topOrder) {
	m.order, m.offset = order, 0
	m.arrange()
}

func (m *topModel) setFilter(filter string) {
	m.filter, m.offset = filter, 0
	m.arrange()
}

// arrange chooses and sorts rows.
func (m *topModel) arrange() {
	m.rows = nil
	if m.frame == nil {
		return
	}
	wanted := strings.ToLower(m.filter)
	for i := range m.frame.rows {
		row := &m.frame.rows[i]
		if strings.Contains(strings.ToLower(row.id), wanted) {
			m.rows = append(m.rows, row)
		}
	}
	slices.SortStableFunc(m.rows, m.order.compare)
	m.scroll(0)
}
