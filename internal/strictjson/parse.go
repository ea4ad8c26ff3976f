package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"
)

type kind string

const (
	kindNull   kind = "null"
	kindBool   kind = "true or false"
	kindNumber kind = "a number"
	kindString kind = "a string"
	kindArray  kind = "a list"
	kindObject kind = "an object"
)

// node is one value of the document with its place, which encoding/json forgets.
type node struct {
	kind       kind
	start, end int
	text       string  // of a scalar or a key
	keys       []*node // of an object, beside items
	items      []*node
}

// plain is the value as encoding/json would give it to an `any`.
func (n *node) plain() any {
	switch n.kind {
	case kindBool:
		return n.text == "true"
	case kindNumber:
		// A number too large for a float stays exact rather than becoming infinite.
		if f, err := strconv.ParseFloat(n.text, 64); err == nil {
			return f
		}
		return json.Number(n.text)
	case kindString:
		return n.text
	case kindArray:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = item.plain()
		}
		return list
	case kindObject:
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
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, &Error{Message: "there is no JSON here; the smallest valid document is {}"}
	}
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		return nil, &Error{Message: "the file starts with a byte order mark; save it as plain UTF-8"}
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
		return nil, &Error{Offset: at, Message: "this is not UTF-8 text"}
	}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			// The offset stands after the byte that was wrong; at the end of the input there is none.
			at := max(int(syntax.Offset)-1, 0)
			if syntax.Error() == "unexpected end of JSON input" {
				at = len(data)
			}
			return nil, &Error{Offset: at, Message: "not valid JSON: " + syntax.Error(), Err: err}
		}
		return nil, &Error{Message: "not valid JSON: " + err.Error(), Err: err}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	p := parser{data: data, dec: dec}
	return p.value()
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
		n.kind = kindNull
	case bool:
		n.kind, n.text = kindBool, strconv.FormatBool(tok)
	case json.Number:
		n.kind, n.text = kindNumber, tok.String()
	case string:
		n.kind, n.text = kindString, tok
	case json.Delim:
		if err := p.inside(n, tok); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (p *parser) inside(n *node, open json.Delim) *Error {
	n.kind = kindArray
	if open == '{' {
		n.kind = kindObject
	}
	seen := map[string]bool{}
	for p.dec.More() {
		at := "[" + strconv.Itoa(len(n.items)) + "]"
		if n.kind == kindObject {
			tok, key, err := p.next()
			if err != nil {
				return err
			}
			key.text, key.kind = tok.(string), kindString
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
