package gate

import (
	"maps"
	"slices"

	"mvdan.cc/sh/v3/syntax"
)

// frame is a function that is being called.
type frame struct {
	body              *syntax.Stmt
	start             *state // what it started from
	locals            map[string]bool
	background, piped int
	pipes             map[*syntax.CallExpr]bool // where it called itself into or out of a pipe
}

// call runs a function's body with its arguments.
func (j *judge) call(st *state, at *syntax.CallExpr, name string, f function, args []string) {
	outer, vars, returns := st.args, maps.Clone(st.vars), st.returns
	var ways []func(*state)
	for _, body := range f.bodies {
		ways = append(ways, func(s *state) {
			s.args, s.returns = slices.Clone(args), false
			if j.again(s, at, name, body) {
				j.deeper(func() {
					locals := map[string]bool{}
					j.calls = append(j.calls, &frame{body: body, locals: locals, start: s.clone(), background: j.background, piped: j.piped, pipes: map[*syntax.CallExpr]bool{}})
					j.stmt(s, body)
					j.calls = j.calls[:len(j.calls)-1]
					for name := range locals { // what was hidden is seen again
						v, ok := vars[name]
						switch {
						case ok:
							v.forms = union(v.forms, s.vars[name].forms)
							s.vars[name] = v
						case name == "IFS":
							delete(s.vars, name)
						default:
							s.setForms(name, []string{hole})
						}
					}
				})
			} else {
				s.out.add(hole)
				s.cwd = unionOf(s.cwd, []string{hole})
				for v := range s.vars { // what the inner calls set
					s.setForms(v, []string{hole})
				}
			}
			s.args, s.returns = outer, returns
		})
	}
	if len(ways) == 1 {
		ways[0](st)
	} else if len(ways) > 1 {
		j.branches(st, ways...)
	}
}

// again judges that a function calls itself: each time in a process of its own, that is a bomb. It says whether the body
// has to be judged again: it has, as long as it starts from something that it was not judged with.
func (j *judge) again(st *state, at *syntax.CallExpr, name string, body *syntax.Stmt) bool {
	n, known := 0, false
	for _, fr := range j.calls {
		if fr.body != body {
			continue
		}
		if n++; n == 1 {
			switch {
			case j.background > fr.background:
				j.found(Deny, Bomb, "the function "+shown(name)+" starts itself in the background, again and again", name)
			case j.piped > fr.piped:
				fr.pipes[at] = true
				if len(fr.pipes) > 1 {
					j.found(Deny, Bomb, "the function "+shown(name)+" starts itself more than once in pipes", name)
				}
				j.found(Ask, Bomb, "the function "+shown(name)+" starts itself in a pipe", name)
			}
		}
		known = known || st.within(fr.start)
	}
	if n == 2 {
		st.forget(nil) // what changes from call to call may be anything
	}
	return n < 3 && !known
}
