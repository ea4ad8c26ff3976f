package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Kind is what a value is. It reads as in a sentence.
type Kind string

// The kinds.
const (
	Null   Kind = "null"
	Bool   Kind = "true or false"
	Number Kind = "a number"
	String Kind = "a string"
	Array  Kind = "a list"
	Object Kind = "an object"
)

// node is one value of the document with its place, which encoding/json forgets.
type node struct {
	kind       Kind
	start, end int
	text       string  // of a scalar or a key
	keys       []*node // of an object, beside items
	items      []*node
}

// plain is the value as encoding/json would give it to an `any`.
func (n *node) plain() any {
	switch n.kind {
	case Bool:
		return n.text == "true"
	case Number:
		// A number too large for a float stays exact rather than becoming infinite.
		if f, err := strconv.ParseFloat(n.text, 64); err == nil {
			return f
		}
		return json.Number(n.text)
	case String:
		return n.text
	case Array:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = item.plain()
		}
		return list
	case Object:
		m := make(map[string]any, len(n.items))
		for i, key := range n.keys {
			m[key.text] = n.items[i].plain()
		}
		return m
	}
	return nil
}

// parse checks the syntax of the whole document first (encoding/json does, with the offset), then walks its tokens.
func parse(data []byte) (*node, *Error) {
	if err := syntax(data); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	p := parser{data: data, dec: dec}
	return p.value()
}

// syntax says what is wrong with a document that is no JSON.
func syntax(data []byte) *Error {
	if len(bytes.TrimSpace(data)) == 0 {
		return &Error{Message: "there is no JSON here; the smallest valid document is {}"}
	}
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		return &Error{Message: "the file starts with a byte order mark; save it as plain UTF-8"}
	}
	if !utf8.Valid(data) {
		at := 0
		for at < len(data) {
			r, size := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		return &Error{Offset: at, Message: "this is not UTF-8 text"}
	}
	if json.Valid(data) {
		return nil
	}
	var raw json.RawMessage
	err := json.Unmarshal(data, &raw)
	var bad *json.SyntaxError
	if !errors.As(err, &bad) {
		return &Error{Message: fmt.Sprintf("not valid JSON: %v", err), Err: err}
	}
	// The offset stands after the byte that was wrong; at the end of the input there is none.
	at := max(int(bad.Offset)-1, 0)
	if bad.Error() == "unexpected end of JSON input" {
		at = len(data)
	}
	return &Error{Offset: at, Message: "not valid JSON: " + bad.Error(), Err: err}
}

type parser struct {
	data []byte
	dec  *json.Decoder
}

// next gives one token with its place.
func (p *parser) next() (json.Token, *node, *Error) {
	start := int(p.dec.InputOffset())
	for start < len(p.data) && bytes.IndexByte([]byte(" \t\r\n,:"), p.data[start]) >= 0 {
		start++
	}
	tok, err := p.dec.Token()
	if err != nil {
		return nil, nil, &Error{Offset: start, Message: "not valid JSON: " + err.Error(), Err: err}
	}
	return tok, &node{start: start, end: int(p.dec.InputOffset())}, nil
}

func (p *parser) value() (*node, *Error) {
	tok, n, err := p.next()
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case nil:
		n.kind = Null
	case bool:
		n.kind, n.text = Bool, strconv.FormatBool(tok)
	case json.Number:
		n.kind, n.text = Number, tok.String()
	case string:
		n.kind, n.text = String, tok
	case json.Delim:
		if err := p.inside(n, tok); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (p *parser) inside(n *node, open json.Delim) *Error {
	n.kind = Array
	if open == '{' {
		n.kind = Object
	}
	seen := map[string]bool{}
	for p.dec.More() {
		at := "[" + strconv.Itoa(len(n.items)) + "]"
		if n.kind == Object {
			tok, key, err := p.next()
			if err != nil {
				return err
			}
			key.text, key.kind = tok.(string), String
			at = pathKey(key.text)
			if seen[key.text] {
				return &Error{Path: at, Offset: key.start, Message: "given twice: keep one of them"}
			}
			seen[key.text] = true
			n.keys = append(n.keys, key)
		}
		item, err := p.value()
		if err != nil {
			err.Path = join(at, err.Path)
			return err
		}
		n.items = append(n.items, item)
	}
	_, last, err := p.next()
	if err != nil {
		return err
	}
	n.end = last.end
	return nil
}
