package run

import (
	"errors"
	"reflect"

	"ravi/internal/redact"
)

// scrub is a copy of v in which no string holds a secret: in structs, lists,
// maps and behind pointers. Strings of a type of their own are words of ours,
// such as a status, and stay.
func scrub[T any](r *redact.Redactor, v T) T {
	if r == nil {
		return v
	}
	return scrubbed(r, reflect.ValueOf(&v).Elem()).Interface().(T)
}

func scrubbed(r *redact.Redactor, v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() {
			out.SetString(r.String(v.String()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(scrubbed(r, v.Field(i)))
			}
		}
	case reflect.Interface:
		if !v.IsNil() {
			out.Set(scrubbed(r, v.Elem()))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(scrubbed(r, v.Elem()))
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				out.Index(i).Set(scrubbed(r, v.Index(i)))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			out.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
			for at := v.MapRange(); at.Next(); {
				out.SetMapIndex(scrubbed(r, at.Key()), scrubbed(r, at.Value()))
			}
		}
	}
	return out
}

// cleanError is an error whose text held a secret. What it wraps can be
// recognised, but not be had.
type cleanError struct {
	text string
	err  error
}

func (e *cleanError) Error() string        { return e.text }
func (e *cleanError) Is(target error) bool { return errors.Is(e.err, target) }

func scrubError(r *redact.Redactor, err error) error {
	if err == nil {
		return nil
	}
	if _, found := r.Found(err.Error()); !found {
		return err
	}
	return &cleanError{r.String(err.Error()), err}
}
