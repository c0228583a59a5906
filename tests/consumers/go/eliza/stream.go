package eliza

/*
#include <stdlib.h>
#include "eliza-inference-ffi.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Config is what one stream generates and how; the header describes the fields. An empty string
// is passed as NULL: not set. Start from DefaultConfig.
type Config struct {
	MaxTokens       int32
	Temperature     float32
	TopP            float32
	TopK            int32
	RepeatPenalty   float32
	SlotID          int32
	PromptCacheKey  string
	DraftMin        int32
	DraftMax        int32
	MTPDrafterPath  string
	GBNFGrammar     string
	DisableThinking bool
	NGPULayers      int32
	CacheTypeK      string
	CacheTypeV      string
}

// DefaultConfig is greedy decoding without a cap. Its SlotID is -1, since 0 would name a
// conversation, whose state is kept.
func DefaultConfig() Config { return Config{SlotID: -1} }

// Step is one call of Next.
type Step struct {
	Done     bool // it was the last one of the generation
	Tokens   []int32
	Text     string
	Drafted  int32
	Accepted int32
}

// Stream is one sequence of tokens and what is generated on it.
type Stream struct {
	mutex   sync.Mutex // guards what follows, and is not held by the calls that take long
	handle  *C.EliLlmStream
	running bool
	closed  bool // or being closed
	ended   *sync.Cond
}

// Open opens a stream. Close it; it may outlive the context.
func (c *Context) Open(config Config) (*Stream, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.calls.RUnlock()
	var copies []unsafe.Pointer
	defer func() {
		for _, text := range copies {
			C.free(text)
		}
	}()
	var refused error
	optional := func(argument, text string) *C.char {
		if text == "" {
			return nil
		}
		copied, err := cString(argument, text)
		if err != nil {
			refused = err
			return nil
		}
		copies = append(copies, unsafe.Pointer(copied))
		return copied
	}
	converted := C.eliza_llm_stream_config_t{
		max_tokens:       C.int32_t(config.MaxTokens),
		temperature:      C.float(config.Temperature),
		top_p:            C.float(config.TopP),
		top_k:            C.int32_t(config.TopK),
		repeat_penalty:   C.float(config.RepeatPenalty),
		slot_id:          C.int32_t(config.SlotID),
		prompt_cache_key: optional("PromptCacheKey", config.PromptCacheKey),
		draft_min:        C.int32_t(config.DraftMin),
		draft_max:        C.int32_t(config.DraftMax),
		mtp_drafter_path: optional("MTPDrafterPath", config.MTPDrafterPath),
		gbnf_grammar:     optional("GBNFGrammar", config.GBNFGrammar),
		disable_thinking: C.int32_t(flag(config.DisableThinking)),
		n_gpu_layers:     C.int32_t(config.NGPULayers),
		cache_type_k:     optional("CacheTypeK", config.CacheTypeK),
		cache_type_v:     optional("CacheTypeV", config.CacheTypeV),
	}
	if refused != nil {
		return nil, refused
	}
	var message *C.char
	handle := C.eliza_inference_llm_stream_open(c.handle, &converted, &message)
	if handle == nil {
		return nil, newError(0, message)
	}
	stream := &Stream{handle: handle}
	stream.ended = sync.NewCond(&stream.mutex)
	return stream, nil
}

// Close cancels the call that runs, if any, waits for it and closes the stream. Any goroutine may
// call it but that of a verifier, which the call waits for. Closing twice does nothing.
func (s *Stream) Close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.running && !s.closed {
		C.eliza_inference_llm_stream_cancel(s.handle)
	}
	s.closed = true
	for s.running {
		s.ended.Wait()
	}
	C.eliza_inference_llm_stream_close(s.handle) // nil, where another goroutine closed it meanwhile
	s.handle = nil
}

// Cancel may be called by any goroutine at any time: a running Prefill or Next stops inside its
// step and fails with code -7, and so does every later one until Reset or ResetKeep. It does
// nothing to a closed stream.
func (s *Stream) Cancel() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.closed {
		C.eliza_inference_llm_stream_cancel(s.handle)
	}
}

// begin lets the caller, and nobody else, use the handle until end.
func (s *Stream) begin() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return fmt.Errorf("the stream is %w", ErrClosed)
	}
	if s.running {
		return ErrBusy
	}
	s.running = true
	return nil
}

func (s *Stream) end() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.running = false
	s.ended.Broadcast()
}

// Prefill appends prompt tokens and decodes them.
func (s *Stream) Prefill(tokens []int32) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	var message *C.char
	code := C.eliza_inference_llm_stream_prefill(s.handle, (*C.int32_t)(unsafe.SliceData(tokens)),
		C.size_t(len(tokens)), &message)
	_, err := check(code, message)
	return err
}

// Next runs at most one model step. What finds no room comes with the next call; 16 tokens and 256
// bytes hold any ordinary step, 1 and 5 hold something.
func (s *Stream) Next(tokensCap, textCap int) (Step, error) {
	if err := checkCapacity("tokensCap", tokensCap); err != nil {
		return Step{}, err
	}
	if err := checkCapacity("textCap", textCap); err != nil {
		return Step{}, err
	}
	if err := s.begin(); err != nil {
		return Step{}, err
	}
	defer s.end()
	tokens := make([]int32, tokensCap)
	text := make([]byte, textCap)
	var count C.size_t
	var drafted, accepted C.int32_t
	var message *C.char
	code := C.eliza_inference_llm_stream_next(s.handle,
		(*C.int32_t)(unsafe.SliceData(tokens)), C.size_t(len(tokens)), &count,
		chars(text), C.size_t(len(text)), &drafted, &accepted, &message)
	if code < 0 {
		return Step{}, newError(code, message)
	}
	return Step{
		Done:     code == 1,
		Tokens:   tokens[:count],
		Text:     C.GoString(chars(text)),
		Drafted:  int32(drafted),
		Accepted: int32(accepted),
	}, nil
}

// SaveSlot writes the stream's tokens and KV cache to a file.
func (s *Stream) SaveSlot(path string) error {
	file, err := cString("path", path)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(file))
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	var message *C.char
	_, err = check(C.eliza_inference_llm_stream_save_slot(s.handle, file, &message), message)
	return err
}

// RestoreSlot replaces them by those of such a file.
func (s *Stream) RestoreSlot(path string) error {
	file, err := cString("path", path)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(file))
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	var message *C.char
	_, err = check(C.eliza_inference_llm_stream_restore_slot(s.handle, file, &message), message)
	return err
}

// Reset starts over; after a Cancel it makes the stream usable again. Its error has no message.
func (s *Stream) Reset() error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	_, err := check(C.eliza_inference_llm_stream_reset(s.handle), nil)
	return err
}

// ResetKeep does the same but keeps the first tokens of the sequence; it returns how many.
func (s *Stream) ResetKeep(keep int32) (int, error) {
	if err := s.begin(); err != nil {
		return 0, err
	}
	defer s.end()
	return check(C.eliza_inference_llm_stream_reset_keep(s.handle, C.int32_t(keep)), nil)
}
