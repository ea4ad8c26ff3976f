package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf16"
)

// minCore is the shortest piece of base64 that is looked for: a shorter one could stand anywhere.
const minCore = 8

// minCased is the shortest secret that is looked for in letters of one case: a shorter one may then be a word.
const minCased = 16

// formsOf are the ways to write a secret, itself first. Some are the same.
func formsOf(secret string) []string {
	forms := []string{secret, strings.ToLower(hex.EncodeToString([]byte(secret))), strings.ToUpper(hex.EncodeToString([]byte(secret)))}
	forms = append(forms, percentForms(secret)...)
	forms = append(forms, jsonForms(secret)...)
	forms = append(forms, htmlForms(secret)...)
	forms = append(forms, everyForms(secret)...)
	return append(forms, base64Forms(secret)...)
}

// everyForms change each character, whether it has to be or not, or each letter to one case, as happens to the names of
// hosts and headers.
func everyForms(secret string) []string {
	each := func(format string, units []uint16) string {
		var b strings.Builder
		for _, u := range units {
			fmt.Fprintf(&b, format, u)
		}
		return b.String()
	}
	wide := utf16.Encode([]rune(secret)) // JSON's units
	var bytes, runes []uint16
	for i := range len(secret) {
		bytes = append(bytes, uint16(secret[i]))
	}
	forms := []string{
		each(`\u%04x`, wide), each(`\u%04X`, wide), each("%%%02X", bytes), each("%%%02x", bytes), each(`\x%02x`, bytes), each(`\x%02X`, bytes),
	}
	if len(secret) >= minCased {
		forms = append(forms, strings.ToLower(secret), strings.ToUpper(secret))
	}
	for _, r := range secret {
		if r > 0xffff {
			return forms
		}
		runes = append(runes, uint16(r))
	}
	return append(forms, each("&#%d;", runes), each("&#x%x;", runes), each("&#x%X;", runes))
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

var (
	escapeSigns      = strings.NewReplacer("+", "%2B", "/", "%2F")
	escapeSignsLower = strings.NewReplacer("+", "%2b", "/", "%2f")
)

// Base64Cores are what a text is in base64 without the characters that depend on what stands around it, for each place
// in a group of three bytes where it may begin. encoding must not pad.
func Base64Cores(encoding *base64.Encoding, text string) []string {
	var cores []string
	for before := range 3 {
		encoded := encoding.EncodeToString([]byte("\x00\x00"[:before] + text))
		cores = append(cores, encoded[(8*before+5)/6:8*(before+len(text))/6])
	}
	return cores
}

// base64Forms are the cores that are long enough to mean the secret.
func base64Forms(secret string) []string {
	var forms []string
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for _, core := range Base64Cores(encoding, secret) {
			if len(core) < minCore {
				continue
			}
			// Its signs in an address, and as some write the slash in JSON.
			forms = append(forms, core, strings.ReplaceAll(core, "/", `\/`), escapeSigns.Replace(core), escapeSignsLower.Replace(core))
		}
	}
	return forms
}
