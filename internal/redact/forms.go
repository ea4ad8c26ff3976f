package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"strings"
)

// minCore is the shortest piece of base64 that is looked for: a shorter one could stand anywhere.
const minCore = 8

// formsOf are the ways to write a secret, itself first. Some are the same.
func formsOf(secret string) []string {
	forms := []string{secret, strings.ToLower(hex.EncodeToString([]byte(secret))), strings.ToUpper(hex.EncodeToString([]byte(secret)))}
	forms = append(forms, percentForms(secret)...)
	forms = append(forms, jsonForms(secret)...)
	forms = append(forms, htmlForms(secret)...)
	return append(forms, base64Forms(secret)...)
}

var escaped = regexp.MustCompile(`%[0-9A-F]{2}`)

// percentForms are a query's and a path's, and what other languages leave as it is: JavaScript's encodeURIComponent
// some marks, Python's quote the slash.
func percentForms(secret string) []string {
	query := url.QueryEscape(secret)
	spaced := strings.ReplaceAll(query, "+", "%20")
	forms := []string{
		query, url.PathEscape(secret), spaced, strings.ReplaceAll(spaced, "%2F", "/"),
		strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*").Replace(spaced),
	}
	for _, f := range forms {
		forms = append(forms, escaped.ReplaceAllStringFunc(f, strings.ToLower))
	}
	return forms
}

func jsonForms(secret string) []string {
	var forms []string
	for _, forHTML := range []bool{true, false} {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(forHTML)
		if err := enc.Encode(secret); err != nil {
			continue // no string is refused
		}
		f := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
		forms = append(forms, f, strings.ReplaceAll(f, "/", `\/`))
	}
	return forms
}

// htmlForms are Go's, and with the other names of the two quotation marks.
func htmlForms(secret string) []string {
	f := html.EscapeString(secret)
	return []string{
		f, strings.NewReplacer("&#34;", "&quot;").Replace(f), strings.NewReplacer("&#34;", "&quot;", "&#39;", "&#x27;").Replace(f),
		strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;").Replace(f),
	}
}

// base64Forms are the characters that depend on nothing but the secret, for each place in a group of three bytes where
// it may begin.
func base64Forms(secret string) []string {
	var forms []string
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			text := encoding.EncodeToString([]byte("\x00\x00"[:before] + secret))
			core := text[(8*before+5)/6 : 8*(before+len(secret))/6]
			if len(core) >= minCore {
				forms = append(forms, core)
			}
		}
	}
	return forms
}
