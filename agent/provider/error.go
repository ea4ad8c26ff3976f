package provider

import (
	"encoding/json"
	"fmt"
	"strings"
)

// apiError is what a provider answers instead of a message.
type apiError struct {
	status int
	body   string
	err    error
}

const mostWhy = 500

func (e *apiError) Error() string {
	var doc struct {
		Error   json.RawMessage
		Message string
	}
	why := ""
	if json.Unmarshal([]byte(e.body), &doc) == nil {
		why = doc.Message
		var inner struct{ Message string }
		if json.Unmarshal(doc.Error, &inner) == nil && inner.Message != "" {
			why = inner.Message
		}
	}
	if why == "" {
		why = strings.Join(strings.Fields(e.body), " ")
	}
	if r := []rune(why); len(r) > mostWhy {
		why = string(r[:mostWhy]) + "…"
	}
	return fmt.Sprintf("the provider answered %d: %s", e.status, why)
}

func (e *apiError) Unwrap() error { return e.err }
