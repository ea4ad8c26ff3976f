// Package strictjson decodes JSON that people write by hand, and refuses what encoding/json lets pass: unknown keys,
// keys given twice (in either spelling), values of the wrong type, fractions for integers, null where nothing may be
// missing, and text that is not UTF-8. Every error says where: the path, the line and the column.
//
// A struct field is known by its `json` tag (or the snake_case of its name) and accepts exactly two spellings,
// snake_case and camelCase. Types with their own UnmarshalJSON or UnmarshalText are asked; when such a method calls
// Decode itself, positions and paths are put together, so an error deep inside still points into the user's file.
//
// It touches no files, and knows nothing of what it decodes.
package strictjson

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Error is a refusal, with the place that it is about.
type Error struct {
	Path    string // such as tools.sandbox.extra_volumes[0][2]; empty for the whole document
	Offset  int    // in bytes, from the start of the document
	Line    int    // from 1
	Column  int    // from 1, in characters
	Message string
	Err     error // the cause, when a type's own decoding method refused
}

func (e *Error) Error() string {
	s := fmt.Sprintf("line %d, column %d: ", e.Line, e.Column)
	if e.Path != "" {
		s += e.Path + ": "
	}
	return s + e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Decode fills the value that into points to. What the document does not name keeps its value, so defaults are set
// before. On an error nothing is changed.
func Decode(data []byte, into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("strictjson: into must be a non-nil pointer, not %T", into)
	}
	root, err := parse(data)
	if err != nil {
		return locate(data, err)
	}
	fresh := reflect.New(v.Type().Elem()).Elem()
	fresh.Set(v.Elem())
	d := decoder{data: data}
	if err := d.value(root, fresh, ""); err != nil {
		return locate(data, err)
	}
	v.Elem().Set(fresh)
	return nil
}

// locate turns the offset of an error into line and column.
func locate(data []byte, err *Error) error {
	before := data[:min(err.Offset, len(data))]
	err.Line = 1 + strings.Count(string(before), "\n")
	err.Column = 1 + utf8.RuneCount(before[strings.LastIndexByte(string(before), '\n')+1:])
	return err
}

type decoder struct{ data []byte }

func (d *decoder) fail(n *node, path, format string, args ...any) *Error {
	return &Error{Path: path, Offset: n.start, Message: fmt.Sprintf(format, args...)}
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	anyType      = reflect.TypeFor[any]()
	rawType      = reflect.TypeFor[Raw]()
)

func (d *decoder) value(n *node, v reflect.Value, path string) *Error {
	t := v.Type()
	if t == rawType {
		v.Set(reflect.ValueOf(Raw{doc: d.data, start: n.start, end: n.end, path: path}))
		return nil
	}
	if n.kind == Null {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
			v.SetZero()
			return nil
		}
	}
	if t.Kind() == reflect.Pointer {
		p := reflect.New(t.Elem())
		if !v.IsNil() {
			p.Elem().Set(v.Elem())
		}
		if err := d.value(n, p.Elem(), path); err != nil {
			return err
		}
		v.Set(p)
		return nil
	}
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		return d.own(n, path, u.UnmarshalJSON(d.data[n.start:n.end]))
	}
	if t == durationType {
		return d.duration(n, v, path)
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if n.kind != String {
			return d.mismatch(n, path, "a string")
		}
		return d.own(n, path, u.UnmarshalText([]byte(n.text)))
	}
	switch t.Kind() {
	case reflect.Struct:
		return d.object(n, v, path)
	case reflect.Map:
		return d.dict(n, v, path)
	case reflect.Slice, reflect.Array:
		return d.list(n, v, path)
	case reflect.Interface:
		if t != anyType {
			return d.fail(n, path, "cannot decode into %s", t)
		}
		v.Set(reflect.ValueOf(n.plain()))
		return nil
	default:
		return d.scalar(n, v, path)
	}
}

// own reports the refusal of a type's own method. An *Error of ours, from a Decode inside that method, is about a
// part of this value: its path and offset are continued rather than hidden in a message.
func (d *decoder) own(n *node, path string, err error) *Error {
	if err == nil {
		return nil
	}
	var inner *Error
	if errors.As(err, &inner) {
		return &Error{Path: join(path, inner.Path), Offset: n.start + inner.Offset, Message: inner.Message, Err: err}
	}
	return &Error{Path: path, Offset: n.start, Message: err.Error(), Err: err}
}

func (d *decoder) duration(n *node, v reflect.Value, path string) *Error {
	if n.kind != String {
		return d.mismatch(n, path, `a duration such as "30s" or "2h"`)
	}
	dur, err := time.ParseDuration(n.text)
	if err != nil {
		return d.fail(n, path, `%s is not a duration: write it like "30s", "5m" or "2h"`, strconv.Quote(n.text))
	}
	v.SetInt(int64(dur))
	return nil
}

func (d *decoder) scalar(n *node, v reflect.Value, path string) *Error {
	switch v.Kind() {
	case reflect.Bool:
		if n.kind != Bool {
			return d.mismatch(n, path, "true or false")
		}
		v.SetBool(n.text == "true")
	case reflect.String:
		if n.kind != String {
			return d.mismatch(n, path, "a string")
		}
		v.SetString(n.text)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if n.kind != Number {
			return d.mismatch(n, path, "an integer")
		}
		i, err := strconv.ParseInt(n.text, 10, v.Type().Bits())
		if err != nil {
			return d.number(n, path, err, "an integer")
		}
		v.SetInt(i)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if n.kind != Number {
			return d.mismatch(n, path, "an integer")
		}
		u, err := strconv.ParseUint(n.text, 10, v.Type().Bits())
		if err != nil {
			return d.number(n, path, err, "an integer of 0 or more")
		}
		v.SetUint(u)
	case reflect.Float32, reflect.Float64:
		if n.kind != Number {
			return d.mismatch(n, path, "a number")
		}
		f, err := strconv.ParseFloat(n.text, v.Type().Bits())
		if err != nil {
			return d.number(n, path, err, "a number")
		}
		v.SetFloat(f)
	default:
		return d.fail(n, path, "cannot decode into %s", v.Type())
	}
	return nil
}

func (d *decoder) number(n *node, path string, err error, want string) *Error {
	if errors.Is(err, strconv.ErrRange) {
		return d.fail(n, path, "%s is out of range", n.text)
	}
	return d.fail(n, path, "expected %s, got %s", want, n.text)
}

func (d *decoder) mismatch(n *node, path, want string) *Error {
	return d.fail(n, path, "expected %s, got %s", want, n.kind)
}

func (d *decoder) list(n *node, v reflect.Value, path string) *Error {
	if n.kind != Array {
		return d.mismatch(n, path, "a list")
	}
	into := v
	if v.Kind() == reflect.Slice {
		into = reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	} else if v.Len() != len(n.items) {
		return d.fail(n, path, "expected a list of %d, got %d", v.Len(), len(n.items))
	}
	for i, item := range n.items {
		if err := d.value(item, into.Index(i), path+"["+strconv.Itoa(i)+"]"); err != nil {
			return err
		}
	}
	v.Set(into)
	return nil
}

func (d *decoder) dict(n *node, v reflect.Value, path string) *Error {
	if n.kind != Object {
		return d.mismatch(n, path, "an object")
	}
	t := v.Type()
	if t.Key().Kind() != reflect.String {
		return d.fail(n, path, "cannot decode into %s", t)
	}
	m := reflect.MakeMapWithSize(t, len(n.items))
	for i, key := range n.keys {
		item := reflect.New(t.Elem()).Elem()
		if err := d.value(n.items[i], item, join(path, pathKey(key.text))); err != nil {
			return err
		}
		m.SetMapIndex(reflect.ValueOf(key.text).Convert(t.Key()), item)
	}
	v.Set(m)
	return nil
}

func (d *decoder) object(n *node, v reflect.Value, path string) *Error {
	if n.kind != Object {
		return d.mismatch(n, path, "an object")
	}
	known := fields(v.Type())
	seen := make(map[string]string, len(n.keys))
	for i, key := range n.keys {
		at := slices.IndexFunc(known, func(f field) bool { return f.snake == key.text || f.camel == key.text })
		if at < 0 {
			return d.unknown(key, known, path)
		}
		f := known[at]
		if first, twice := seen[f.snake]; twice {
			return d.fail(key, join(path, pathKey(key.text)), "given twice, as %s and as %s: keep one of them", first, key.text)
		}
		seen[f.snake] = key.text
		if err := d.value(n.items[i], v.FieldByIndex(f.index), join(path, f.snake)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) unknown(key *node, known []field, path string) *Error {
	names := make([]string, len(known))
	for i, f := range known {
		names[i] = f.snake
	}
	message := "unknown key"
	if near := Nearest(key.text, names); near != "" {
		message += "; did you mean " + near + "?"
	} else if len(names) > 0 {
		message += "; known here: " + strings.Join(names, ", ")
	}
	return d.fail(key, join(path, pathKey(key.text)), "%s", message)
}

// Raw is a part of a document that is decoded later, by whoever knows its type. Errors then still point into the
// whole document.
type Raw struct {
	doc        []byte
	start, end int
	path       string
}

// IsZero says that the document did not have this part.
func (r Raw) IsZero() bool { return r.doc == nil }

// Decode is Decode for this part; a part that is not there changes nothing.
func (r Raw) Decode(into any) error {
	if r.IsZero() {
		return nil
	}
	err := Decode(r.doc[r.start:r.end], into)
	var e *Error
	if errors.As(err, &e) {
		return locate(r.doc, &Error{Path: join(r.path, e.Path), Offset: r.start + e.Offset, Message: e.Message, Err: e.Err})
	}
	return err
}
