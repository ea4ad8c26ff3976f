package adapter

// Loop is Ravi's own agent loop. Nothing is started in the sandbox for it, so it is none of Programs: it only has a name
// where agents have one.
const Loop = "loop"

var ownLoop = Program{Name: Loop, Title: "Ravi's own loop", KeyEnv: []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY"}, NeedsModel: true}

// OwnLoop describes it.
func OwnLoop() Program { return ownLoop }
