// Package redact takes known secret values out of text and out of streams.
//
// It finds a secret as it stands and in the forms that programs commonly give it: percent-encoded, in a JSON string,
// in HTML, in hexadecimal, in letters of one case, and in base64 wherever it may begin in what was encoded. It does not
// find what was compressed, encrypted, split over lines, cut off, escaped twice, or given another form on purpose: taking
// values out is a net beneath the rule that they must not get there, never that rule itself.
//
// A part of a secret is no form on purpose. Who could have a part found could guess the rest byte by byte.
//
// The package uses the standard library only, touches no file and no network, and must not print, log or wrap in an
// error what it was given.
package redact

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Pair is a secret value and what stands in its place.
type Pair struct {
	Secret, Instead string
	// Name says which secret it is; empty: Instead says so.
	Name string
}

func (p Pair) name() string { return cmp.Or(p.Name, p.Instead) }

// Redactor looks for a set of secrets. Nil, and the zero Redactor, look for none. Any number of goroutines may use it at
// once.
//
// Where several forms begin at the same place the longest counts, and of those that overlap the one that begins first.
// What was put in place of a secret is not looked at again.
type Redactor struct {
	adding sync.Mutex
	now    atomic.Pointer[search]
}

// search is a set of secrets that does not change.
type search struct {
	pairs []Pair
	forms []form
	// byFirst are the forms by their first byte, the longest first.
	byFirst [256][]*form
	// The search looks at the last two bytes of a window that is as wide as the shortest form (within bounds). step
	// says how far the window may move on, given these two; from base on it is the number of a bucket: the forms whose
	// beginning ends that way.
	window  int
	step    [1 << 16]uint16
	buckets [][]*form
	longest int
}

// form is one way to write one secret.
type form struct {
	text string
	pair int
}

const (
	maxWindow  = 16
	base       = maxWindow
	maxBuckets = 1<<16 - base
)

// New makes a Redactor for pairs. It is nil if there are none; pairs whose secret is empty count for nothing. Of equal
// secrets, or forms, the first pair decides.
func New(pairs ...Pair) *Redactor {
	s := newSearch(pairs)
	if s == nil {
		return nil
	}
	r := &Redactor{}
	r.now.Store(s)
	return r
}

// Add has r look for more secrets, also in the streams that it has under way: from the next piece of them on. To a
// secret that is there already nothing is added.
func (r *Redactor) Add(pairs ...Pair) {
	r.adding.Lock()
	defer r.adding.Unlock()
	var all []Pair
	if s := r.now.Load(); s != nil {
		all = slices.Clone(s.pairs)
	}
	for _, p := range pairs {
		if !slices.ContainsFunc(all, func(have Pair) bool { return have.Secret == p.Secret }) {
			all = append(all, p)
		}
	}
	r.now.Store(newSearch(all))
}

// Set has r look for these secrets and no others, also in the streams that it has under way, from the next piece of
// them on. Without any it changes nothing.
func (r *Redactor) Set(pairs ...Pair) {
	r.adding.Lock()
	defer r.adding.Unlock()
	if s := newSearch(pairs); s != nil {
		r.now.Store(s)
	}
}

// Longest is the length of the longest form of a secret, in bytes.
func (r *Redactor) Longest() int {
	if s := r.search(); s != nil {
		return s.longest
	}
	return 0
}

// search is what r looks for at this moment; nil: nothing.
func (r *Redactor) search() *search {
	if r == nil {
		return nil
	}
	return r.now.Load()
}

func newSearch(pairs []Pair) *search {
	r := &search{}
	known := map[string]bool{"": true}
	for _, p := range pairs {
		if p.Secret == "" {
			continue
		}
		r.pairs = append(r.pairs, p)
		for _, text := range formsOf(p.Secret) {
			if !known[text] {
				known[text] = true
				r.forms = append(r.forms, form{text, len(r.pairs) - 1})
			}
		}
	}
	if len(r.forms) == 0 {
		return nil
	}
	slices.SortFunc(r.forms, func(a, b form) int { return cmp.Compare(len(b.text), len(a.text)) })
	r.longest = len(r.forms[0].text)
	r.window = max(2, min(maxWindow, len(r.forms[len(r.forms)-1].text)))
	for i := range r.step {
		r.step[i] = uint16(r.window - 1)
	}
	for i := range r.forms {
		f := &r.forms[i]
		r.byFirst[f.text[0]] = append(r.byFirst[f.text[0]], f)
		for at := range r.window - 2 {
			s := &r.step[two(f.text[at], f.text[at+1])]
			*s = min(*s, uint16(r.window-2-at))
		}
	}
	// Buckets come after all steps, which they take the place of.
	for i := range r.forms {
		f := &r.forms[i]
		if len(f.text) > 1 {
			r.bucket(f.text[r.window-2], f.text[r.window-1], f)
			continue
		}
		for next := range 256 { // any byte may follow the only one
			r.bucket(f.text[0], byte(next), f)
		}
	}
	return r
}

func two(a, b byte) uint16 { return uint16(a)<<8 | uint16(b) }

// bucket notes that f may begin where a window ends with a and b.
func (r *search) bucket(a, b byte, f *form) {
	s := &r.step[two(a, b)]
	if *s < base {
		if len(r.buckets) < maxBuckets {
			r.buckets = append(r.buckets, nil)
		}
		*s = uint16(base + len(r.buckets) - 1) // the last bucket takes what is too many
	}
	at := &r.buckets[*s-base]
	*at = append(*at, f)
}

// scan says how many bytes of data hold no secret, and which form follows them. If none does, what follows them is the
// beginning of one; at the end of everything (final) that is none.
func (r *search) scan(data []byte, final bool) (plain int, found *form) {
	w := r.window
	for i := w - 1; i < len(data); {
		s := r.step[two(data[i-1], data[i])]
		if s < base {
			i += int(s)
			continue
		}
		at := i - (w - 1)
		if f, wait := match(r.buckets[s-base], data[at:], final); f != nil || wait {
			return at, f
		}
		i++
	}
	// No window begins here any more, but a form that goes on after data may.
	for at := max(0, len(data)-(w-1)); at < len(data); at++ {
		if f, wait := match(r.byFirst[data[at]], data[at:], final); f != nil || wait {
			return at, f
		}
	}
	return len(data), nil
}

// match finds the longest of forms that data begins with. It says to wait if a longer one could follow.
func match(forms []*form, data []byte, final bool) (found *form, wait bool) {
	for _, f := range forms {
		if len(f.text) <= len(data) {
			if string(data[:len(f.text)]) == f.text {
				return f, false
			}
		} else if !final && f.text[:len(data)] == string(data) {
			return nil, true
		}
	}
	return nil, false
}

// String is s without the secrets.
func (r *Redactor) String(s string) string {
	look := r.search()
	if look == nil {
		return s
	}
	data := unsafe.Slice(unsafe.StringData(s), len(s)) // scan only reads
	n, f := look.scan(data, true)
	if f == nil {
		return s
	}
	var b strings.Builder
	for f != nil {
		b.Write(data[:n])
		b.WriteString(look.pairs[f.pair].Instead)
		data = data[n+len(f.text):]
		n, f = look.scan(data, true)
	}
	b.Write(data)
	return b.String()
}

// Found says whether s holds a secret, and what stands in place of the first one.
func (r *Redactor) Found(s string) (instead string, found bool) {
	look := r.search()
	if look == nil {
		return "", false
	}
	_, f := look.scan(unsafe.Slice(unsafe.StringData(s), len(s)), true)
	if f == nil {
		return "", false
	}
	return look.pairs[f.pair].Instead, true
}

// tally counts what was found in a stream.
type tally struct {
	hits  int
	found map[int]string // names by the number of the pair
}

func (t *tally) add(s *search, f *form) Pair {
	if t.found == nil {
		t.found = map[int]string{}
	}
	p := s.pairs[f.pair]
	t.hits++
	t.found[f.pair] = p.name()
	return p
}

// names are those of what was found, each once, in the order of the pairs.
func (t *tally) names() []string {
	var names []string
	for _, i := range slices.Sorted(maps.Keys(t.found)) {
		if !slices.Contains(names, t.found[i]) {
			names = append(names, t.found[i])
		}
	}
	return names
}
