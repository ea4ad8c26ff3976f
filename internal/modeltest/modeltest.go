// Package modeltest is a model provider that plays a script, over real HTTP and server-sent events, in the dialects of
// Anthropic's Messages, OpenAI's Responses and Chat Completions, and Gemini. It is for tests, and for trying an agent
// program without a provider. It listens where it is told, and dials nothing.
package modeltest
