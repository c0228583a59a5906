package main

import (
	"errors"
	"log"
	"strings"
	"time"

	"scenario/eliza"
)

// misuse is the second part of ../README.md: what callers may get wrong, and what they are told.
func misuse(bundle string) object {
	context := must(eliza.Create(bundle))
	played := object{
		"nul":        nulInTexts(context),
		"whole_text": wholeText(context),
		"capacity":   negativeCapacities(context),
		"busy":       busyStream(context),
	}
	closedStream(context, played)
	played["closing_context"] = closedWhileOpening(bundle)
	played["closed_context"] = closedContext(context)
	context.Close()
	return played
}

func nulInTexts(context *eliza.Context) object {
	const text = "a\x00b"
	stream := must(context.Open(usual()))
	defer stream.Close()
	_, err := eliza.Create(text)
	outcomes := object{
		"bundle":       refused("bundle", err),
		"save_slot":    refused("path", stream.SaveSlot(text)),
		"restore_slot": refused("path", stream.RestoreSlot(text)),
	}
	open := func(key, field string, config eliza.Config) {
		_, err := context.Open(config)
		outcomes[key] = refused(field, err)
	}
	open("prompt_cache_key", "PromptCacheKey", eliza.Config{PromptCacheKey: text})
	open("mtp_drafter_path", "MTPDrafterPath", eliza.Config{MTPDrafterPath: text})
	open("gbnf_grammar", "GBNFGrammar", eliza.Config{GBNFGrammar: text})
	open("cache_type_k", "CacheTypeK", eliza.Config{CacheTypeK: text})
	open("cache_type_v", "CacheTypeV", eliza.Config{CacheTypeV: text})
	return outcomes
}

func wholeText(context *eliza.Context) string {
	return must(context.Detokenize(must(context.Tokenize("a\x00b", false)), textCap))
}

func negativeCapacities(context *eliza.Context) object {
	stream := must(context.Open(usual()))
	defer stream.Close()
	ids := must(context.Tokenize(prompt, false))
	check(stream.Prefill(ids))
	_, noTokens := stream.Next(-1, textCap)
	_, noText := stream.Next(tokensCap, -1)
	_, noDetokenized := context.Detokenize(ids, -1)
	_, noTranscript := context.Transcribe(make([]float32, 4), 16000, -1)
	return object{
		"next_tokens": refused("tokensCap", noTokens),
		"next_text":   refused("textCap", noText),
		"detokenize":  refused("capacity", noDetokenized),
		"transcribe":  refused("capacity", noTranscript),
	}
}

// busyStream is used by another goroutine while Next runs: its verifier waits for that one.
func busyStream(context *eliza.Context) (outcomes object) {
	stream := must(context.Open(drafting()))
	defer stream.Close()
	check(context.SetVerifier(func(eliza.VerifierEvent) {
		done := make(chan object)
		go func() { done <- everyCall(stream) }()
		outcomes = <-done
	}))
	generate(stream, must(context.Tokenize(loop, false)))
	check(context.SetVerifier(nil))
	return outcomes
}

// closedStream is closed while it runs Prefill.
func closedStream(context *eliza.Context, played object) {
	stream := must(context.Open(usual()))
	ids := must(context.Tokenize(strings.Repeat("word ", 2000), false))
	closed := make(chan bool)
	go func() {
		for !errors.Is(stream.Reset(), eliza.ErrBusy) { // until Prefill is the call that runs
		}
		stream.Close()
		closed <- true
	}()
	err := stream.Prefill(ids)
	for errors.Is(err, eliza.ErrBusy) { // with Reset
		err = stream.Prefill(ids)
	}
	<-closed
	played["closing"] = outcome(err)
	played["closed"] = everyCall(stream)
	stream.Cancel()
	stream.Close()
}

func everyCall(stream *eliza.Stream) object {
	_, next := stream.Next(tokensCap, textCap)
	_, kept := stream.ResetKeep(0)
	return object{
		"prefill":      outcome(stream.Prefill([]int32{1})),
		"next":         outcome(next),
		"save_slot":    outcome(stream.SaveSlot("unused.slot")),
		"restore_slot": outcome(stream.RestoreSlot("unused.slot")),
		"reset":        outcome(stream.Reset()),
		"reset_keep":   outcome(kept),
	}
}

// closedWhileOpening closes contexts, just made, while other goroutines open their first streams:
// one loads the model, the other waits for it. An end before theirs shows in one of the rounds.
func closedWhileOpening(bundle string) string {
	for round := 0; round < 6; round++ {
		context := must(eliza.Create(bundle))
		begun, ended := make(chan bool), make(chan string)
		for i := 0; i < 2; i++ {
			go func() {
				begun <- true
				stream, err := context.Open(usual())
				if err == nil {
					err = stream.Prefill([]int32{1})
					stream.Close()
				}
				ended <- outcome(err)
			}()
		}
		<-begun
		<-begun
		time.Sleep(time.Duration(round) * time.Millisecond)
		context.Close()
		for i := 0; i < 2; i++ {
			// Closed, should one not have come to open in time.
			if end := <-ended; end != "accepted" && end != "closed" {
				return end
			}
		}
	}
	return "finished"
}

func closedContext(context *eliza.Context) object {
	context.Close()
	_, tokenized := context.Tokenize(prompt, false)
	_, detokenized := context.Detokenize([]int32{1}, textCap)
	_, transcribed := context.Transcribe(make([]float32, 4), 16000, 64)
	_, opened := context.Open(usual())
	return object{
		"tokenize":     outcome(tokenized),
		"detokenize":   outcome(detokenized),
		"transcribe":   outcome(transcribed),
		"open":         outcome(opened),
		"set_verifier": outcome(context.SetVerifier(nil)),
	}
}

// refused is the outcome of a call with a wrong argument, which the error has to name.
func refused(argument string, err error) string {
	if err != nil && !strings.Contains(err.Error(), argument) {
		return "refused without its name: " + err.Error()
	}
	return outcome(err)
}

func outcome(err error) string {
	var failed *eliza.Error
	switch {
	case err == nil:
		return "accepted"
	case errors.Is(err, eliza.ErrArgument):
		return "refused"
	case errors.Is(err, eliza.ErrBusy):
		return "busy"
	case errors.Is(err, eliza.ErrClosed):
		return "closed"
	case errors.As(err, &failed) && failed.Code == -7:
		return "cancelled"
	}
	log.Fatal(err)
	return ""
}
