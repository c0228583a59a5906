// The scenario of ../README.md in Go. The library is the one that the program is linked with.
package main

import (
	"encoding/json"
	"errors"
	"log"
	"os"
	"strings"
	"time"

	"scenario/eliza"
)

const (
	prompt      = "The capital of France is"
	smileys     = "🙂🙃🙂🙃🙂🙃🙂"
	loop        = "one two three four one two three four one two"
	mixed       = "Hello, wörld! 🙂 日本語<|im_end|>"
	tokensCap   = 16
	textCap     = 256
	cancelAfter = 50 * time.Millisecond
)

type object map[string]any

func main() {
	log.SetFlags(0)
	log.SetPrefix("scenario: ")
	if len(os.Args) == 4 && os.Args[3] == "misuse" {
		check(json.NewEncoder(os.Stdout).Encode(misuse(os.Args[2])))
		return
	}
	if len(os.Args) != 3 {
		log.Fatal("usage: scenario LIBRARY BUNDLE [misuse]")
	}
	transcript, cancelMS := object{}, object{}
	beforeTheContext(transcript)
	context := must(eliza.Create(os.Args[2]))
	defer context.Close()
	withoutAStream(context, transcript)
	onOneStream(context, transcript)
	configuredStreams(context, transcript)
	selection(context, transcript)
	cancelled(context, transcript, cancelMS)
	eliza.ReleaseNulls()
	transcript["nulls"] = true
	played := object{"transcript": transcript, "cancel_ms": cancelMS}
	check(json.NewEncoder(os.Stdout).Encode(played))
}

func beforeTheContext(transcript object) {
	const missing = "/no/such/bündle-🙂"
	transcript["version"] = eliza.ABIVersion()
	transcript["probes"] = eliza.Supported()
	_, err := eliza.Create(missing)
	transcript["bad_bundle"] = refusal(err)
	if eliza.CreateOrNil(missing) != nil {
		log.Fatal("a context for a bundle that is not there")
	}
}

func withoutAStream(context *eliza.Context, transcript object) {
	_, err := context.Transcribe(make([]float32, 4), 16000, 64)
	transcript["voice"] = failure(err)

	special := must(context.Tokenize(mixed, true))
	transcript["tokenize"] = object{
		"plain":   must(context.Tokenize(mixed, false)),
		"special": special,
	}
	text := must(context.Detokenize(special, textCap))
	transcript["detokenize"] = object{"size": len(text), "text": text}
	_, err = context.Detokenize(special, 4)
	transcript["detokenize_small"] = failure(err)
}

func onOneStream(context *eliza.Context, transcript object) {
	stream := must(context.Open(usual()))
	defer stream.Close()
	promptIDs := must(context.Tokenize(prompt, false))
	smileyIDs := must(context.Tokenize(smileys, false))
	andThen := must(context.Tokenize(" And then", false))

	transcript["first"] = generate(stream, promptIDs)

	check(stream.Reset())
	again := generate(stream, promptIDs)
	again["reset"] = 0
	transcript["again"] = again

	count := must(stream.ResetKeep(3))
	kept := generate(stream, promptIDs[3:])
	kept["reset_keep"] = count
	transcript["kept"] = kept

	transcript["continued"] = generate(stream, andThen)
	transcript["bad_token"] = failure(stream.Prefill([]int32{999999}))
	transcript["no_token"] = failure(stream.Prefill([]int32{}))

	check(stream.Reset())
	transcript["split"] = generate(stream, smileyIDs)

	check(stream.Reset())
	transcript["tiny"] = generateWithRoom(stream, smileyIDs, 1, 5)

	check(stream.Reset())
	cramped := generateWithRoom(stream, smileyIDs, tokensCap, 2)
	cramped["then"] = step(stream.Next(tokensCap, textCap))
	transcript["cramped"] = cramped

	check(stream.Reset())
	check(stream.Prefill(promptIDs))
	fourSteps(stream)
	check(stream.SaveSlot("talk.slot"))
	second := must(context.Open(usual()))
	check(second.RestoreSlot("talk.slot"))
	saved := generate(second, andThen)
	saved["save"], saved["restore"] = 0, 0
	transcript["saved"] = saved
	second.Close()

	transcript["missing_slot"] = failure(stream.RestoreSlot("missing.slot"))
}

func configuredStreams(context *eliza.Context, transcript object) {
	sampled := usual()
	sampled.Temperature = 0.8
	sampled.TopP = 0.9
	sampled.TopK = 40
	sampled.RepeatPenalty = 1.2
	transcript["sampled"] = generateOnce(context, prompt, sampled)

	grammar := usual()
	grammar.GBNFGrammar = `root ::= " yes" | " no"`
	transcript["grammar"] = generateOnce(context, prompt, grammar)

	keyed := usual()
	keyed.SlotID = 3
	keyed.PromptCacheKey = "talk"
	transcript["keyed"] = []object{
		generateOnce(context, prompt, keyed),
		generateOnce(context, prompt, keyed),
	}

	// One stream generates, so one call at a time appends.
	events := []object{}
	check(context.SetVerifier(func(event eliza.VerifierEvent) {
		events = append(events, object{
			"accepted":      event.Accepted,
			"rejected_from": event.RejectedFrom,
			"rejected_to":   event.RejectedTo,
			"corrected":     event.Corrected,
		})
	}))
	drafted := generateOnce(context, loop, drafting())
	check(context.SetVerifier(nil))
	drafted["events"] = events
	transcript["drafted"] = drafted

	wrongK, wrongV, wrongDrafter, wrongGrammar := usual(), usual(), usual(), usual()
	wrongK.CacheTypeK = "q3_9"
	wrongV.CacheTypeV = "q3_9"
	wrongDrafter.MTPDrafterPath = "/no/such/drafter.gguf"
	wrongGrammar.GBNFGrammar = "root ::= ("
	refused := []object{}
	for _, config := range []eliza.Config{wrongK, wrongV, wrongDrafter, wrongGrammar} {
		_, err := context.Open(config)
		refused = append(refused, refusal(err))
	}
	transcript["failed_open"] = refused
}

// In a program with cgo, os.Setenv sets C's environment as well.
func selection(context *eliza.Context, transcript object) {
	check(os.Setenv("ELIZA_LLM_BACKEND", "no-such-runtime"))
	_, err := context.Open(usual())
	refused := refusal(err)
	refused["message"], _, _ = strings.Cut(refused["message"].(string), "\n")
	transcript["hard_select"] = refused

	check(os.Setenv("ELIZA_LLM_BACKEND", "LlamaCpp"))
	transcript["selected"] = generateOnce(context, prompt, usual())
	check(os.Unsetenv("ELIZA_LLM_BACKEND"))
}

func cancelled(context *eliza.Context, transcript, cancelMS object) {
	stream := must(context.Open(eliza.DefaultConfig()))
	defer stream.Close()
	promptIDs := must(context.Tokenize(prompt, false))
	longIDs := must(context.Tokenize(strings.Repeat("word ", 2000), false))

	check(stream.Prefill(must(context.Tokenize(loop, false))))
	stopped, milliseconds := stop(stream, func() error {
		for {
			if _, err := stream.Next(tokensCap, textCap); err != nil {
				return err
			}
		}
	})
	cancelMS["next"] = milliseconds
	_, err := stream.Next(tokensCap, textCap)
	next := failure(err)
	prefill := failure(stream.Prefill(promptIDs))
	check(stream.Reset())
	check(stream.Prefill(promptIDs))
	transcript["cancel_next"] = object{
		"code":    stopped["code"],
		"next":    next,
		"prefill": prefill,
		"reset":   0,
		"steps":   fourSteps(stream),
	}

	check(stream.Reset())
	stopped, milliseconds = stop(stream, func() error { return stream.Prefill(longIDs) })
	cancelMS["prefill"] = milliseconds
	check(stream.Reset())
	check(stream.Prefill(promptIDs))
	transcript["cancel_prefill"] = object{
		"code":    stopped["code"],
		"message": stopped["message"],
		"reset":   0,
		"steps":   fourSteps(stream),
	}

	check(stream.Reset())
	check(stream.Prefill(promptIDs))
	context.Close()
	transcript["outlived"] = object{"steps": fourSteps(stream)}
}

// stop returns what call fails with, since another goroutine cancels meanwhile, and how many
// milliseconds after the call of Cancel it returned.
func stop(stream *eliza.Stream, call func() error) (object, float64) {
	calledAt := make(chan time.Time, 1)
	time.AfterFunc(cancelAfter, func() {
		now := time.Now()
		stream.Cancel()
		calledAt <- now
	})
	err := call()
	returnedAt := time.Now()
	elapsed := returnedAt.Sub(<-calledAt)
	return failure(err), float64(elapsed) / float64(time.Millisecond)
}

func usual() eliza.Config {
	config := eliza.DefaultConfig()
	config.MaxTokens = 16
	return config
}

func drafting() eliza.Config {
	config := usual()
	config.MaxTokens = 40
	config.DraftMin = 1
	config.DraftMax = 4
	config.CacheTypeK = "q8_0"
	config.CacheTypeV = "q8_0"
	return config
}

func generateOnce(context *eliza.Context, text string, config eliza.Config) object {
	stream := must(context.Open(config))
	defer stream.Close()
	return generate(stream, must(context.Tokenize(text, false)))
}

func generate(stream *eliza.Stream, tokens []int32) object {
	return generateWithRoom(stream, tokens, tokensCap, textCap)
}

func generateWithRoom(stream *eliza.Stream, tokens []int32, tokensCap, textCap int) object {
	if err := stream.Prefill(tokens); err != nil {
		return object{"prefill": failure(err)}
	}
	steps := []object{}
	for {
		next, err := stream.Next(tokensCap, textCap)
		steps = append(steps, step(next, err))
		if err != nil || next.Done {
			return object{"prefill": 0, "steps": steps}
		}
	}
}

func fourSteps(stream *eliza.Stream) []object {
	steps := []object{}
	for i := 0; i < 4; i++ {
		steps = append(steps, step(stream.Next(tokensCap, textCap)))
	}
	return steps
}

func step(next eliza.Step, err error) object {
	if err != nil {
		return failure(err)
	}
	code := 0
	if next.Done {
		code = 1
	}
	return object{
		"code":     code,
		"tokens":   next.Tokens,
		"text":     next.Text,
		"drafted":  next.Drafted,
		"accepted": next.Accepted,
	}
}

func failure(err error) object {
	var failed *eliza.Error
	if !errors.As(err, &failed) {
		log.Fatal("a call succeeded that must fail")
	}
	return object{"code": failed.Code, "message": failed.Message}
}

func refusal(err error) object {
	return object{"opened": false, "message": failure(err)["message"]}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
