package gateway

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"ravi/internal/command"
)

// openAPI describes what a caller may call as an OpenAPI 3.1 document.
func (s *Server) openAPI(who caller) map[string]any {
	paths, tags, seen := map[string]any{}, []any{}, map[string]bool{}
	env := &command.Env{Caller: who.Caller}
	for _, g := range s.Table.Groups() {
		for _, c := range s.index.all {
			if c.Group == g.Name && c.May(env) && !seen[g.Name] {
				seen[g.Name] = true
				tags = append(tags, map[string]any{"name": g.Name, "description": g.Summary})
			}
		}
	}
	for _, c := range s.index.all {
		if c.May(env) {
			paths[Root+c.Group+"/"+c.Name] = map[string]any{"post": operation(c)}
		}
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "Ravi", "version": s.Version,
			"description": "Every command of Ravi. Inputs are a flat object, and unknown keys are refused; the answer is the value itself."},
		"tags":     tags,
		"paths":    paths,
		"security": []any{map[string]any{"key": []any{}}},
		"components": map[string]any{
			"securitySchemes": map[string]any{"key": map[string]any{"type": "http", "scheme": "bearer", "description": "a context key, rctx_…"}},
			"schemas":         map[string]any{"Error": errorSchema},
		},
	}
}

var errorSchema = map[string]any{
	"type": "object", "required": []any{"error"},
	"properties": map[string]any{"error": map[string]any{
		"type": "object", "required": []any{"code", "message", "hint"},
		"properties": map[string]any{
			"code":    map[string]any{"type": "string", "description": "for programs; it never changes its meaning"},
			"message": map[string]any{"type": "string"}, "hint": map[string]any{"type": "string", "description": "what mends it"},
		},
	}},
}

func operation(c *command.Command) map[string]any {
	properties, required := map[string]any{}, []any{}
	for i := range c.Fields {
		f := &c.Fields[i]
		schema := schemaOf(f.Type, taken, 0)
		schema["description"] = f.Usage
		schema["x-ravi-host"] = string(f.Host)
		properties[f.JSON] = schema
		if f.Arg != "" && !f.Optional {
			required = append(required, f.JSON)
		}
	}
	input := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		input["required"] = required
	}
	done := map[string]any{"application/json": map[string]any{"schema": answerSchema(c.Out)}}
	response := map[string]any{"description": "done", "content": done}
	if c.HasPrint() {
		done["text/plain"] = map[string]any{"schema": map[string]any{"type": "string", "description": "what a command line would show"}}
		response["headers"] = map[string]any{ExitHeader: map[string]any{
			"description": "of text: the exit code that a command line would have; without it 0", "schema": map[string]any{"type": "integer"},
		}}
	}
	return map[string]any{
		"operationId": c.FullName(), "tags": []any{c.Group}, "summary": c.Summary, "description": c.Long, "x-ravi-access": string(c.Access),
		"requestBody": map[string]any{"required": len(required) > 0, "content": map[string]any{"application/json": map[string]any{"schema": input}}},
		"responses": map[string]any{
			"200":     response,
			"default": map[string]any{"description": "not done", "content": map[string]any{"application/json": map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/Error"}}}},
		},
	}
}

// answerSchema is the schema of an answer: nothing is told as an empty list or object (writeValue).
func answerSchema(t reflect.Type) map[string]any {
	schema := schemaOf(t, given, 0)
	if kinds, ok := schema["type"].([]any); ok {
		schema["type"] = kinds[0]
	}
	if t.Kind() == reflect.Pointer {
		delete(schema, "required")
	}
	return schema
}

// way is which way a value goes: they are not written as they are read.
type way int

const (
	taken way = iota // strictjson reads it
	given            // encoding/json writes it
)

// schemaOf is the JSON schema of a type.
func schemaOf(t reflect.Type, w way, depth int) map[string]any {
	const deepest = 8
	if depth > deepest {
		return map[string]any{}
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return orNull(schemaOf(t.Elem(), w, depth))
	case t == reflect.TypeFor[time.Duration]() && w == taken:
		return map[string]any{"type": "string", "examples": []any{"10m"}}
	case t == reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "integer", "description": "nanoseconds"}
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()):
		return map[string]any{} // it has a form of its own
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextMarshaler]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return orNull(map[string]any{"type": "string", "contentEncoding": "base64"})
		}
		return orNull(map[string]any{"type": "array", "items": schemaOf(t.Elem(), w, depth+1)})
	case reflect.Map:
		return orNull(map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), w, depth+1)})
	case reflect.Struct:
		properties, required := map[string]any{}, map[string]bool{}
		fieldsInto(t, w, properties, required, depth)
		schema := map[string]any{"type": "object", "properties": properties}
		if names := slices.Sorted(maps.Keys(required)); len(names) > 0 {
			schema["required"] = names
		}
		return schema
	}
	return map[string]any{}
}

// fieldsInto adds what a struct has, and what is always there. What it embeds comes first: its own fields hide it.
func fieldsInto(t reflect.Type, w way, properties map[string]any, required map[string]bool, depth int) {
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct {
			fieldsInto(f.Type, w, properties, required, depth)
		}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() || f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct {
			continue
		}
		if name == "" {
			name = f.Name
		}
		properties[name] = schemaOf(f.Type, w, depth+1)
		delete(required, name)
		if !strings.Contains(options, "omit") {
			required[name] = true
		}
	}
}

// orNull lets a schema be null as well, as Go's nil pointers, slices and maps are.
func orNull(schema map[string]any) map[string]any {
	if kind, ok := schema["type"].(string); ok {
		schema["type"] = []any{kind, "null"}
	}
	return schema
}
