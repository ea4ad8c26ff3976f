package adapter

import "maps"

// Command is a program of the operator's. It gets its task in the file that
// RAVI_TASK_FILE names; what it writes is what it says.
const Command = "command"

var ownCommand = Program{
	Name: Command, Title: "a command of yours",
	KeyEnv: []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"},
	launch: launchCommand, reader: readPlain,
}

func launchCommand(s Setup) Launch {
	l := Launch{Args: s.Command, Env: map[string]string{"RAVI_MODEL": s.Model, "RAVI_MODEL_URL": s.BaseURL}}
	maps.Copy(l.Env, ProviderEnv(s.Dialect, s.BaseURL, s.Token))
	if s.Prompt != "" {
		l.Env["RAVI_TASK_FILE"] = s.Home + "/" + promptPath
		l.Files = []File{{Path: promptPath, Content: s.Prompt}}
	}
	if s.ContextDir != "" {
		l.Env["RAVI_CONTEXT"] = s.ContextDir
	}
	return l
}

// ProviderEnv is what the makers' own libraries read to find a provider and its key.
func ProviderEnv(dialect, baseURL, token string) map[string]string {
	switch dialect {
	case Anthropic:
		return map[string]string{"ANTHROPIC_BASE_URL": baseURL, "ANTHROPIC_API_KEY": token}
	case OpenAI:
		return map[string]string{"OPENAI_BASE_URL": baseURL + "/v1", "OPENAI_API_KEY": token}
	case Gemini:
		return map[string]string{"GOOGLE_GEMINI_BASE_URL": baseURL, "GEMINI_API_KEY": token}
	}
	return nil
}

// readPlain takes each line as it is. It never fails by what it says.
func readPlain(s *scribe) func([]byte) {
	s.plain = true
	return func(line []byte) { s.text(Text, string(line), "") }
}
