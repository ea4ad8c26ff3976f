package command

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"ravi/internal/strictjson"
)

// Host is the class of host resource that an input field names.
type Host string

// The classes. None is for a field that names nothing of the host.
const (
	HostNone    Host = "none"
	HostPath    Host = "path"    // a file or directory of the host
	HostBackend Host = "backend" // how a sandbox is made
	HostImage   Host = "image"   // what a sandbox is made of
	HostSecret  Host = "secret"  // a credential, or where one may come in
	HostVolume  Host = "volume"  // a directory of the host inside a sandbox
	HostSize    Host = "size"    // memory, processors, disk, time
	HostNetwork Host = "network" // an address, or what may be reached
	HostCommand Host = "command" // a program and its arguments, or a path, inside a sandbox: a caller may name them freely
)

var hosts = []Host{HostNone, HostPath, HostBackend, HostImage, HostSecret, HostVolume, HostSize, HostNetwork, HostCommand}

// free says that a caller with a key may fill such a field as it likes.
func (h Host) free() bool { return h == HostNone || h == HostCommand }

// Field is one field of an input.
type Field struct {
	Name     string // in Go
	JSON     string // in JSON
	Flag     string // without dashes; empty for an argument
	Short    string
	Arg      string // what stands for the argument in help; empty for a flag
	Optional bool   // an argument that may be left out
	Holder   string // what stands for the flag's value in help
	Usage    string
	Host     Host
	Type     reflect.Type
	index    int
}

// Rest says whether the field takes all arguments that follow.
func (f *Field) Rest() bool { return f.Arg != "" && f.Type.Kind() == reflect.Slice }

// Set adds a text, as it stands on the command line, to the field of an input from NewInput.
func (f *Field) Set(in any, text string) error {
	return setText(reflect.ValueOf(in).Elem().Field(f.index), text)
}

// Clear empties a field that takes many texts, so that the first one given replaces the default.
func (f *Field) Clear(in any) { reflect.ValueOf(in).Elem().Field(f.index).SetZero() }

// Given says whether the field of an input holds anything but what it held before it was filled.
func (f *Field) Given(in, defaults any) bool {
	return !reflect.DeepEqual(reflect.ValueOf(in).Elem().Field(f.index).Interface(), reflect.ValueOf(defaults).Elem().Field(f.index).Interface())
}

// Value is the field's value in an input.
func (f *Field) Value(in any) any { return reflect.ValueOf(in).Elem().Field(f.index).Interface() }

// Get is the field's value as text, empty for none.
func (f *Field) Get(in any) string { return textOf(reflect.ValueOf(in).Elem().Field(f.index)) }

// Complete says which argument an input lacks that it must have. A command line sees that itself.
func (c *Command) Complete(in any) error {
	for i := range c.Fields {
		f := &c.Fields[i]
		if f.Arg != "" && !f.Optional && reflect.ValueOf(in).Elem().Field(f.index).IsZero() {
			return Usage(f.JSON+" is missing", f.Usage)
		}
	}
	return nil
}

// fieldsOf reads the tags of an input type.
func fieldsOf(in reflect.Type) ([]Field, error) {
	if in.Kind() != reflect.Struct {
		return nil, fmt.Errorf("the input is %s, not a struct", in)
	}
	var fields []Field
	taken := map[string]string{"--json": "every command", "--quiet": "every command", "--help": "every command", "-q": "every command", "-h": "every command"}
	take := func(name, by string) error {
		if first, twice := taken[name]; twice {
			return fmt.Errorf("%s is taken by %s and %s", name, first, by)
		}
		taken[name] = by
		return nil
	}
	for i := range in.NumField() {
		f, err := fieldOf(in.Field(i))
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", in.Field(i).Name, err)
		}
		f.index = i
		names := []string{"key " + f.JSON}
		if f.Flag != "" {
			names = append(names, "--"+f.Flag)
		}
		if f.Short != "" {
			names = append(names, "-"+f.Short)
		}
		for _, name := range names {
			if err := take(name, f.Name); err != nil {
				return nil, err
			}
		}
		fields = append(fields, f)
	}
	return fields, argsInOrder(fields)
}

// argsInOrder makes sure that arguments can be told apart: required ones first, and one that takes the rest last.
func argsInOrder(fields []Field) error {
	var before *Field
	for i := range fields {
		f := &fields[i]
		if f.Arg == "" {
			continue
		}
		if before != nil && (before.Rest() || before.Optional && !f.Optional) {
			return fmt.Errorf("the argument %s cannot stand after %s", f.Arg, before.Arg)
		}
		before = f
	}
	return nil
}

func fieldOf(sf reflect.StructField) (Field, error) {
	key, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
	f := Field{
		Name: sf.Name, JSON: key, Flag: sf.Tag.Get("flag"), Short: sf.Tag.Get("short"), Arg: sf.Tag.Get("arg"),
		Optional: sf.Tag.Get("optional") == "true", Holder: sf.Tag.Get("value"), Usage: sf.Tag.Get("usage"),
		Host: Host(sf.Tag.Get("host")), Type: sf.Type,
	}
	switch {
	case !sf.IsExported() || sf.Anonymous:
		return f, errors.New("an input has exported fields of its own only")
	case f.JSON == "" || strictjson.Snake(f.JSON) != f.JSON:
		return f, fmt.Errorf("the json tag %q is not snake_case", f.JSON)
	case (f.Flag == "") == (f.Arg == ""):
		return f, errors.New("it needs either a flag or an arg tag")
	case f.Usage == "":
		return f, errors.New("it has no usage tag")
	case f.Host == "":
		return f, errors.New("it has no host tag: classify it (host:\"none\" when it names nothing of the host)")
	case !slices.Contains(hosts, f.Host):
		return f, fmt.Errorf("%q is not a class of host resource", f.Host)
	}
	if err := settable(sf.Type); err != nil {
		return f, err
	}
	return f, nil
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// settable says whether setText knows the type. Nested structs and `any` are not: a host resource could hide there.
func settable(t reflect.Type) error {
	if reflect.PointerTo(t).Implements(textType) {
		return nil
	}
	switch t.Kind() {
	case reflect.Bool, reflect.String, reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64, reflect.Float64:
		return nil
	case reflect.Pointer:
		if t.Elem().Kind() != reflect.Pointer && t.Elem().Kind() != reflect.Slice && t.Elem().Kind() != reflect.Map {
			return settable(t.Elem())
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.String {
			return nil
		}
	case reflect.Map:
		if t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.String {
			return nil
		}
	}
	return fmt.Errorf("the type %s cannot be given on a command line", t)
}

// setText sets a value from text. Lists and maps grow by one.
func setText(v reflect.Value, text string) error {
	if v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		if err := setText(p.Elem(), text); err != nil {
			return err
		}
		v.Set(p)
		return nil
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if v.Type() == durationType {
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("write a duration like 30s, 5m or 2h")
		}
		v.SetInt(int64(d))
		return nil
	}
	switch v.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("write true or false")
		}
		v.SetBool(b)
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return errors.New("write a whole number")
		}
		v.SetInt(i)
	case reflect.Uint, reflect.Uint64:
		u, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return errors.New("write a whole number, 0 or more")
		}
		v.SetUint(u)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || f != f {
			return errors.New("write a number")
		}
		v.SetFloat(f)
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.ValueOf(text).Convert(v.Type().Elem())))
	case reflect.Map:
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return errors.New("write NAME=VALUE")
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		if v.MapIndex(reflect.ValueOf(key)).IsValid() {
			return fmt.Errorf("%s is given twice", strconv.Quote(key))
		}
		v.SetMapIndex(reflect.ValueOf(key), reflect.ValueOf(value))
	}
	return nil
}

func textOf(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return ""
		}
		return textOf(v.Elem())
	case reflect.Slice, reflect.Map:
		if v.Len() == 0 {
			return ""
		}
	}
	if v.IsZero() {
		return ""
	}
	return fmt.Sprint(v.Interface())
}
