package guard

func playReuse(socket string) int { return 1 }
