package strictjson

import (
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

// field is one key that a struct knows, in its two spellings.
type field struct {
	snake, camel string
	index        []int
}

func fields(t reflect.Type) []field {
	var out []field
	for _, sf := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		// The fields of an embedded struct are visible themselves; one behind a pointer could be nil.
		if !sf.IsExported() || tag == "-" || (sf.Anonymous && tag == "" && sf.Type.Kind() == reflect.Struct) {
			continue
		}
		name := tag
		if name == "" {
			name = sf.Name
		}
		snake := Snake(name)
		out = append(out, field{snake: snake, camel: Camel(snake), index: sf.Index})
	}
	return out
}

// Snake is a name in snake_case: MemoryMiB and memoryMib both give memory_mi_b and memory_mib; a run of capitals is
// one word (HTTPPort gives http_port).
func Snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && runes[i-1] != '_' {
			afterSmall := !unicode.IsUpper(runes[i-1])
			beforeSmall := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if afterSmall || beforeSmall {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Camel is a snake_case name in camelCase.
func Camel(snake string) string {
	var b strings.Builder
	up := false
	for _, r := range snake {
		if r == '_' {
			up = b.Len() > 0
			continue
		}
		if up {
			r = unicode.ToUpper(r)
		}
		up = false
		b.WriteRune(r)
	}
	return b.String()
}

// Nearest is the name that was most likely meant, or nothing when none is close.
func Nearest(wrong string, names []string) string {
	best, bound := "", 1+len(wrong)/4
	fold := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
	}
	w := fold(wrong)
	if len(w) > 64 {
		return ""
	}
	for _, name := range names {
		if d := distance(w, fold(name)); d <= bound {
			best, bound = name, d-1
		}
	}
	return best
}

// distance counts the letters to insert, remove, change or swap (Damerau-Levenshtein, adjacent swaps).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

func join(path, more string) string {
	if path == "" || more == "" || strings.HasPrefix(more, "[") {
		return path + more
	}
	return path + "." + more
}

// pathKey is a key as it stands in a path: plain when it is a word, quoted when it is not, so that a hostile key can
// neither forge a path nor reach the terminal raw.
func pathKey(key string) string {
	plain := key != "" && len(key) <= 64 && strings.IndexFunc(key, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '-'
	}) < 0
	if plain {
		return key
	}
	if runes := []rune(key); len(runes) > 64 {
		key = string(runes[:64]) + "…"
	}
	return "[" + strconv.QuoteToASCII(key) + "]"
}
