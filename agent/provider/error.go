package provider

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3/option"
)

// apiError is what a provider answers instead of a message.
type apiError struct {
	status int
	body   string
	err    error
}

const mostWhy = 500

func (e *apiError) Error() string {
	why := cmp.Or(reason([]byte(e.body)), http.StatusText(e.status))
	if e.status < 300 { // it had begun to answer
		return "the provider broke its answer off: " + why
	}
	return fmt.Sprintf("the provider answered %d: %s", e.status, why)
}

// reason is what the body of an error says, as short as can be.
func reason(body []byte) string {
	var doc struct {
		Error   json.RawMessage
		Message string
	}
	why := ""
	if json.Unmarshal(body, &doc) == nil {
		why = doc.Message
		var inner struct{ Message string }
		var plain string
		if json.Unmarshal(doc.Error, &inner) == nil && inner.Message != "" {
			why = inner.Message
		} else if json.Unmarshal(doc.Error, &plain) == nil && plain != "" {
			why = plain
		}
	}
	if why == "" {
		why = strings.Join(strings.Fields(string(body)), " ")
	}
	if r := []rune(why); len(r) > mostWhy {
		why = string(r[:mostWhy]) + "…"
	}
	return why
}

const mostError = 64 << 10

// readable has an error that is in another form than OpenAI's, as of a server between, be read as one: its library fails
// on it, and says nothing of what was answered.
func readable(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	res, err := next(r)
	if err != nil || res.StatusCode < 400 {
		return res, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, mostError))
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return res, err
	}
	var doc struct{ Error map[string]any }
	if json.Unmarshal(body, &doc) != nil || doc.Error == nil {
		if body, err = json.Marshal(map[string]any{"error": map[string]string{"message": cmp.Or(reason(body), http.StatusText(res.StatusCode))}}); err != nil {
			return res, err
		}
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return res, nil
}

func (e *apiError) Unwrap() error { return e.err }
