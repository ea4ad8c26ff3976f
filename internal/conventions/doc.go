// Package conventions holds the repository to its own rules: which package may import which, that each says what it
// is for, that a file stays one room. It has tests only; a rule that no test holds is a wish.
package conventions
