// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/veridict/veridict/control/convert"
)

// contents is what one file holds.
type contents struct {
	objects  []convert.Object
	problems []convert.Problem
	// unreadable are objects that are in the file but could not be decoded.
	unreadable map[convert.Key]bool
	// mistakes are the problems of the objects that could be decoded.
	mistakes map[convert.Key][]convert.Problem
	// broken says that some document could not be parsed, so that there may
	// be more objects in the file than were found.
	broken bool
	// ignored are kinds that a proxy has no use for, like "apps/v1 Deployment".
	ignored []string
}

// parser reads the documents of one file into contents.
type parser struct {
	contents
	nodeName string
	// document and line say where the current document is; documents that
	// hold nothing are not counted.
	document, line int
}

// parse reads all documents of a stream. The error is the stream's; whatever is
// wrong with the documents is in the contents.
func parse(r io.Reader, nodeName string) (contents, error) {
	docs := newDocuments(r)
	p := &parser{nodeName: nodeName}
	in := bufio.NewReaderSize(docs, 16<<10)
	for {
		more, err := docs.next()
		if err != nil || !more {
			return p.contents, err
		}
		line := docs.line
		in.Reset(docs)
		first, err := firstByte(in)
		if errors.Is(err, io.EOF) {
			continue
		}
		if err != nil {
			return p.contents, err
		}
		p.document++
		p.line = line
		if err := p.parseDocument(in, first); err != nil {
			return p.contents, err
		}
	}
}

// firstByte returns the first byte that is not space, and consumes none unless
// they are all space.
func firstByte(in *bufio.Reader) (byte, error) {
	for n := 1; ; n++ {
		ahead, err := in.Peek(n)
		if len(ahead) < n {
			if errors.Is(err, bufio.ErrBufferFull) {
				return ahead[0], nil
			}
			return 0, err
		}
		if b := ahead[n-1]; !isSpace(b) {
			return b, nil
		}
	}
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\r' || b == '\n' }

// parseDocument returns only errors of the stream.
func (p *parser) parseDocument(in io.Reader, first byte) error {
	var failed readError
	if first == '{' {
		dec := json.NewDecoder(&watchedReader{in: in, failed: &failed})
		for {
			err := p.parseJSON(dec)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if failed.err != nil {
				return failed.err
			}
			if err != nil {
				p.breaks(err)
				return nil
			}
		}
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		p.breaks(err)
		return nil
	}
	if bytes.Equal(converted, []byte("null")) {
		p.document--
		return nil
	}
	if err := p.parseJSON(json.NewDecoder(bytes.NewReader(converted))); err != nil {
		p.breaks(err)
	}
	return nil
}

// readError keeps an error of the stream apart from those of the syntax.
type readError struct{ err error }

type watchedReader struct {
	in     io.Reader
	failed *readError
}

func (w *watchedReader) Read(b []byte) (int, error) {
	n, err := w.in.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		w.failed.err = err
	}
	return n, err
}

// breaks reports a document that cannot be parsed.
func (p *parser) breaks(err error) {
	p.broken = true
	message := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	p.problem("", "", "cannot be parsed: %s", strings.ReplaceAll(message, "\n", " "))
}

// place says where the current document is.
func (p *parser) place() string { return fmt.Sprintf("document %d (from line %d)", p.document, p.line) }

// problem reports something about an object. Without one, the place of the
// document stands for it.
func (p *parser) problem(object, field, format string, args ...any) {
	if object == "" {
		object = p.place()
	}
	p.problems = append(p.problems, convert.Problem{Object: object, Field: field, Message: fmt.Sprintf(format, args...)})
}

func (p *parser) ignore(kind string) {
	if !slices.Contains(p.ignored, kind) {
		p.ignored = append(p.ignored, kind)
	}
}

var errNotObject = errors.New("a document must be an object with apiVersion and kind")

// parseJSON takes one object from the decoder. The items of a List are taken
// one by one, so that it may be of any length. It returns io.EOF at the end.
func (p *parser) parseJSON(dec *json.Decoder) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return errNotObject
	}
	fields := map[string]json.RawMessage{}
	list := list{parser: p}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return truncated(err)
		}
		name, _ := token.(string)
		if name == "items" {
			list.kind = kindOfItems(fields["kind"])
			err = list.parse(dec)
		} else {
			var raw json.RawMessage
			err = dec.Decode(&raw)
			fields[name] = raw
		}
		if err != nil {
			return truncated(err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return truncated(err)
	}
	if list.found {
		list.finish(kindOfItems(fields["kind"]))
		return nil
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	p.object(raw, "")
	return nil
}

// truncated makes the end of the stream an error: an object was begun.
func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// list is a List while it is read.
type list struct {
	*parser
	found bool
	// kind is what items are that do not say so themselves, as in a
	// ServiceList; empty while it is not known.
	kind string
	// pending are such items, if they came before the kind of the list.
	pending []json.RawMessage
}

func (l *list) parse(dec *json.Decoder) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	l.found = true
	if token == nil {
		return nil
	}
	if token != json.Delim('[') {
		return errors.New("items must be a list")
	}
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		if l.kind == "" && !hasKind(raw) {
			l.pending = append(l.pending, raw)
			continue
		}
		l.object(raw, l.kind)
	}
	_, err = dec.Token()
	return err
}

func (l *list) finish(kind string) {
	for _, raw := range l.pending {
		l.object(raw, kind)
	}
}

func hasKind(raw json.RawMessage) bool {
	var head struct{ Kind string }
	return json.Unmarshal(raw, &head) == nil && head.Kind != ""
}

// kindOfItems returns "Service" for the kind "ServiceList".
func kindOfItems(raw json.RawMessage) string {
	var kind string
	if json.Unmarshal(raw, &kind) != nil {
		return ""
	}
	return strings.TrimSuffix(kind, "List")
}
