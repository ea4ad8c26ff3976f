package gateway

import (
	"encoding"
	"encoding/json"
	"reflect"
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
		schema := Schema(f.Type)
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
	responses := map[string]any{
		"200":     map[string]any{"description": "done", "content": map[string]any{"application/json": map[string]any{"schema": Schema(c.Out)}}},
		"default": map[string]any{"description": "not done", "content": map[string]any{"application/json": map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/Error"}}}},
	}
	return map[string]any{
		"operationId": c.FullName(), "tags": []any{c.Group}, "summary": c.Summary, "description": c.Long, "x-ravi-access": string(c.Access),
		"requestBody": map[string]any{"required": len(required) > 0, "content": map[string]any{"application/json": map[string]any{"schema": input}}},
		"responses":   responses,
	}
}

// Schema is the JSON schema of what encoding/json makes of a type.
func Schema(t reflect.Type) map[string]any { return schemaOf(t, 0) }

func schemaOf(t reflect.Type, depth int) map[string]any {
	const deepest = 8
	if depth > deepest {
		return map[string]any{}
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return orNull(schemaOf(t.Elem(), depth))
	case t == reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "string", "examples": []any{"10m"}}
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
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return orNull(map[string]any{"type": "array", "items": schemaOf(t.Elem(), depth+1)})
	case reflect.Map:
		return orNull(map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), depth+1)})
	case reflect.Struct:
		properties := map[string]any{}
		fieldsInto(t, properties, depth)
		return map[string]any{"type": "object", "properties": properties}
	}
	return map[string]any{}
}

func fieldsInto(t reflect.Type, properties map[string]any, depth int) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			fieldsInto(f.Type, properties, depth)
		case !f.IsExported():
		default:
			if name == "" {
				name = f.Name
			}
			properties[name] = schemaOf(f.Type, depth+1)
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
