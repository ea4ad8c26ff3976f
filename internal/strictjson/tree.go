package strictjson

import (
	"bytes"
	"encoding/json"
	"iter"
	"slices"
	"strconv"
)

// Bounds of Read. What a program sends to another has far less of both; what has more is meant to exhaust the reader.
// A call of a tool and its result are some 20 values of a conversation, so there is room for 13,000 of them. So many
// values take 28 to 112 MiB to read, as their keys may be.
const (
	MaxDepth  = 256
	MaxValues = 1 << 18
)

// Value is one value of a document that Read has accepted. It holds on to the document, and copies nothing of it.
type Value struct {
	doc *document
	at  int32
}

// document is a text, and where its values are: each before those inside it, so that no value has a list of its own.
type document struct {
	data   []byte
	values []place
}

type place struct {
	key, keyEnd int32 // of its name in an object, with the quotes; keyEnd is 0 elsewhere
	start, end  int32
	next        int32 // the value after it and all that is inside it
}

// Read reads a document that has one meaning for every reader: no key is twice in an object in any spelling of its
// letters by escapes, no text has half of a surrogate pair, nothing is before or after the value. Unlike Decode it
// takes any keys. Keys that differ in capitals are different keys to it.
func Read(data []byte) (Value, error) {
	if err := syntax(data); err != nil {
		return Value{}, locate(data, err)
	}
	if len(data) > 1<<30 {
		return Value{}, locate(data, &Error{Message: "the document is larger than 1 GiB"})
	}
	c := cutter{document: document{data: data}}
	if _, err := c.value(0, 0, 0, 0); err != nil {
		return Value{}, locate(data, err)
	}
	return Value{doc: &c.document}, nil
}

// cutter finds the values of a text that is known to be valid JSON: it need not look for mistakes.
type cutter struct {
	document
	keys [][]byte // of the objects that it is inside of
}

func (c *cutter) space(at int) int {
	for at < len(c.data) && (c.data[at] == ' ' || c.data[at] == '\n' || c.data[at] == '\t' || c.data[at] == '\r') {
		at++
	}
	return at
}

// value cuts the value that comes next, and gives where the text goes on.
func (c *cutter) value(at, depth, key, keyEnd int) (int, *Error) {
	at = c.space(at)
	if depth >= MaxDepth {
		return 0, &Error{Offset: at, Message: "more than " + strconv.Itoa(MaxDepth) + " values inside each other"}
	}
	if len(c.values) >= MaxValues {
		return 0, &Error{Offset: at, Message: "more than " + strconv.Itoa(MaxValues) + " values"}
	}
	self := len(c.values)
	c.values = append(c.values, place{key: int32(key), keyEnd: int32(keyEnd), start: int32(at)})
	end := at
	var err *Error
	switch c.data[at] {
	case '{':
		end, err = c.object(at, depth)
	case '[':
		end, err = c.array(at, depth)
	case '"':
		end, err = c.text(at)
	default:
		for end < len(c.data) && bytes.IndexByte([]byte(" \t\r\n,]}"), c.data[end]) < 0 {
			end++
		}
	}
	if err != nil {
		return 0, err
	}
	c.values[self].end, c.values[self].next = int32(end), int32(len(c.values))
	return end, nil
}

func (c *cutter) array(at, depth int) (int, *Error) {
	at = c.space(at + 1)
	for n := 0; c.data[at] != ']'; n++ {
		end, err := c.value(at, depth+1, 0, 0)
		if err != nil {
			err.Path = join("["+strconv.Itoa(n)+"]", err.Path)
			return 0, err
		}
		if at = c.space(end); c.data[at] == ',' {
			at++
		}
	}
	return at + 1, nil
}

func (c *cutter) object(at, depth int) (int, *Error) {
	first := len(c.keys)
	at = c.space(at + 1)
	for c.data[at] != '}' {
		keyEnd, err := c.text(at)
		if err != nil {
			return 0, err
		}
		key := unquote(c.data[at:keyEnd])
		c.keys = append(c.keys, key)
		colon := c.space(keyEnd)
		end, err := c.value(colon+1, depth+1, at, keyEnd)
		if err != nil {
			err.Path = join(pathKey(string(key)), err.Path)
			return 0, err
		}
		if at = c.space(end); c.data[at] == ',' {
			at = c.space(at + 1)
		}
	}
	if twice, ok := double(c.keys[first:]); ok {
		return 0, &Error{Path: pathKey(string(twice)), Offset: at, Message: "given twice: keep one of them"}
	}
	c.keys = c.keys[:first]
	return at + 1, nil
}

// double finds a key that is there twice. It may change the order.
func double(keys [][]byte) ([]byte, bool) {
	if len(keys) > 16 {
		slices.SortFunc(keys, bytes.Compare)
		for i := 1; i < len(keys); i++ {
			if bytes.Equal(keys[i-1], keys[i]) {
				return keys[i], true
			}
		}
		return nil, false
	}
	for i, key := range keys {
		for _, other := range keys[:i] {
			if bytes.Equal(key, other) {
				return key, true
			}
		}
	}
	return nil, false
}

// text gives the end of the string that starts here.
func (c *cutter) text(start int) (int, *Error) {
	at := start + 1
	for {
		at += bytes.IndexByte(c.data[at:], '"')
		// An even number of backslashes escape each other, an odd one the quote.
		back := at
		for c.data[back-1] == '\\' {
			back--
		}
		at++
		if (at-1-back)%2 == 0 {
			break
		}
	}
	if bad, ok := halfPair(c.data[start:at]); ok {
		return 0, &Error{Offset: start + bad, Message: "half of a surrogate pair, which is no character"}
	}
	return at, nil
}

// halfPair finds an escaped surrogate without its other half. Readers disagree about what it means.
func halfPair(quoted []byte) (int, bool) {
	if !bytes.Contains(quoted, []byte(`\ud`)) && !bytes.Contains(quoted, []byte(`\uD`)) {
		return 0, false
	}
	unit := func(at int) uint64 {
		if at+6 > len(quoted) || quoted[at] != '\\' || quoted[at+1] != 'u' {
			return 0
		}
		u, _ := strconv.ParseUint(string(quoted[at+2:at+6]), 16, 16)
		return u
	}
	for at := 0; at < len(quoted); at++ {
		if quoted[at] != '\\' {
			continue
		}
		switch u := unit(at); {
		case u >= 0xd800 && u < 0xdc00:
			if low := unit(at + 6); low < 0xdc00 || low > 0xdfff {
				return at, true
			}
			at += 11
		case u >= 0xdc00 && u <= 0xdfff:
			return at, true
		default:
			at++
		}
	}
	return 0, false
}

// unquote gives the text of a valid string; one without escapes is not copied.
func unquote(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	var s string
	// It cannot fail: the document is valid.
	_ = json.Unmarshal(quoted, &s)
	return []byte(s)
}

func (v Value) place() place { return v.doc.values[v.at] }

// Raw is the value as it is written.
func (v Value) Raw() []byte { p := v.place(); return v.doc.data[p.start:p.end] }

// Span is where Raw is in the document.
func (v Value) Span() (start, end int) { p := v.place(); return int(p.start), int(p.end) }

// Kind is what it is.
func (v Value) Kind() Kind {
	switch v.doc.data[v.place().start] {
	case '{':
		return Object
	case '[':
		return Array
	case '"':
		return String
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	}
	return Number
}

// Text is a string's text, and a number or a truth value as written.
func (v Value) Text() string {
	if v.Kind() == String {
		return string(unquote(v.Raw()))
	}
	return string(v.Raw())
}

// inside are the values right inside this one.
func (v Value) inside() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if k := v.Kind(); k != Object && k != Array {
			return
		}
		for at := v.at + 1; at < v.place().next; at = v.doc.values[at].next {
			if !yield(Value{doc: v.doc, at: at}) {
				return
			}
		}
	}
}

// Items are the values of a list by their number; nothing else has any.
func (v Value) Items() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		n := 0
		for item := range v.inside() {
			if v.Kind() != Array || !yield(n, item) {
				return
			}
			n++
		}
	}
}

// Members are the values of an object by their keys, in their order; nothing else has any.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for item := range v.inside() {
			p := item.place()
			if v.Kind() != Object || !yield(string(unquote(v.doc.data[p.key:p.keyEnd])), item) {
				return
			}
		}
	}
}

// Get is the value of an object's key.
func (v Value) Get(key string) (Value, bool) {
	for name, item := range v.Members() {
		if name == key {
			return item, true
		}
	}
	return Value{}, false
}
