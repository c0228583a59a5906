#include "backends/litert/litertlm_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include "bundle/bundle.h"
#include "platform/paths.h"
#include "support/error.h"

namespace eliza::litert {
namespace fs = std::filesystem;
namespace {

constexpr char magic[] = "LITERTLM";
constexpr uint64_t header_begin = 32;
constexpr uint64_t header_end_at = 24;
constexpr uint64_t longest_header = 1 << 20;
constexpr uint64_t longest_message = 16 << 20;
constexpr uint32_t known_major_version = 1;

// Kinds of section.
constexpr uint8_t tflite_model = 3;
constexpr uint8_t sentencepiece_tokenizer = 4;
constexpr uint8_t llm_metadata = 5;
constexpr uint8_t huggingface_tokenizer = 6;
constexpr uint64_t llm_model_type = 6;  // a field of the metadata
constexpr uint8_t string_value = 9;     // of a key's value

[[noreturn]] void damaged() {
  throw Error(ELIZA_ERR_BUNDLE_INVALID, "its header or description is damaged");
}

// Bytes [begin, end) of a file, little-endian, every access checked.
class Bytes {
 public:
  Bytes(std::ifstream& file, uint64_t begin, uint64_t end)
      : file_(file), begin_(begin), end_(end) {}

  template <typename Number>
  Number number(uint64_t at) const {
    std::array<char, sizeof(Number)> bytes;
    read(at, bytes.data(), bytes.size());
    Number number;
    std::memcpy(&number, bytes.data(), sizeof(Number));
    return number;
  }

  std::string text(uint64_t at, uint64_t size, uint64_t longest = 4096) const {
    if (size > longest) damaged();
    std::string text(size, '\0');
    read(at, text.data(), size);
    return text;
  }

 private:
  void read(uint64_t at, char* out, uint64_t size) const {
    const uint64_t available = end_ - begin_;
    if (at > available || size > available - at) damaged();
    file_.seekg(static_cast<std::streamoff>(begin_ + at));
    if (!file_.read(out, static_cast<std::streamsize>(size))) damaged();
  }

  std::ifstream& file_;
  const uint64_t begin_;
  const uint64_t end_;
};

// A table of a flatbuffer. Field numbers are those of its schema, from 0.
class Table {
 public:
  static Table root(const Bytes& bytes) { return {bytes, bytes.number<uint32_t>(0)}; }

  template <typename Number>
  Number number(int field) const {
    const auto at = place(field);
    return at ? bytes_->number<Number>(*at) : 0;
  }

  std::optional<Table> table(int field) const {
    const auto at = target(field);
    if (!at) return std::nullopt;
    return Table(*bytes_, *at);
  }

  std::string text(int field) const {
    const auto at = target(field);
    return at ? bytes_->text(*at + 4, bytes_->number<uint32_t>(*at)) : "";
  }

  template <typename Number>
  std::vector<Number> numbers(int field) const {
    return list<Number>(field, sizeof(Number),
                        [&](uint64_t at) { return bytes_->number<Number>(at); });
  }

  std::vector<Table> tables(int field) const {
    return list<Table>(field, 4, [&](uint64_t at) { return Table(*bytes_, follow(at)); });
  }

 private:
  Table(const Bytes& bytes, uint64_t at) : bytes_(&bytes), at_(at) {}

  // The elements of a list, each `width` bytes wide.
  template <typename Element, typename Read>
  std::vector<Element> list(int field, uint64_t width, const Read& read) const {
    constexpr uint32_t most = 1 << 16;
    std::vector<Element> elements;
    const auto at = target(field);
    if (!at) return elements;
    const auto count = bytes_->number<uint32_t>(*at);
    if (count > most) damaged();
    for (uint32_t i = 0; i < count; ++i) elements.push_back(read(*at + 4 + width * i));
    return elements;
  }

  std::optional<uint64_t> place(int field) const {
    const int64_t vtable = static_cast<int64_t>(at_) - bytes_->number<int32_t>(at_);
    if (vtable < 0) damaged();
    const auto start = static_cast<uint64_t>(vtable);
    const auto entry = 4 + 2 * static_cast<uint64_t>(field);
    if (entry + 2 > bytes_->number<uint16_t>(start)) return std::nullopt;
    const auto offset = bytes_->number<uint16_t>(start + entry);
    if (offset == 0) return std::nullopt;
    return at_ + offset;
  }

  std::optional<uint64_t> target(int field) const {
    const auto at = place(field);
    if (!at) return std::nullopt;
    return follow(*at);
  }

  uint64_t follow(uint64_t at) const { return at + bytes_->number<uint32_t>(at); }

  const Bytes* bytes_;
  uint64_t at_;
};

// The runtime follows every offset of the header unchecked.
void check_items(const std::vector<Table>& items) {
  for (const auto& item : items) {
    if (item.text(0).empty()) damaged();
    const auto kind = item.number<uint8_t>(1);
    const auto value = item.table(2);
    if (!value) damaged();
    switch (kind) {
      case string_value:
        value->text(0);
        break;
      case 1:
      case 2:
      case 8:
        value->number<uint8_t>(0);
        break;
      case 3:
      case 4:
        value->number<uint16_t>(0);
        break;
      case 5:
      case 6:
      case 7:
        value->number<uint32_t>(0);
        break;
      case 10:
      case 11:
      case 12:
        value->number<uint64_t>(0);
        break;
      default:
        damaged();
    }
  }
}

// The section's `model_type`, without case and prefix: "prefill_decode" for the text model.
std::string model_type(const Table& section) {
  for (const auto& item : section.tables(0)) {
    if (item.text(0) != "model_type" || item.number<uint8_t>(1) != string_value) continue;
    const auto value = item.table(2);
    std::string name = value ? value->text(0) : "";
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    const std::string prefix = "tf_lite_";
    return name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : name;
  }
  return "";
}

// The last dimension of a TFLite signature's input "mask": the positions that attention sees. 0
// where it is left open.
int32_t mask_width(const Table& graph, const Table& signature) {
  const auto tensors = graph.tables(0);
  for (const auto& input : signature.tables(0)) {
    const auto index = input.number<uint32_t>(1);
    if (input.text(0) != "mask" || index >= tensors.size()) continue;
    const auto dimensions = tensors[index].numbers<int32_t>(0);
    return dimensions.empty() || dimensions.back() <= 1 ? 0 : dimensions.back();
  }
  return 0;
}

// The numbers of a protobuf message's fields, in their order; throws where it is none.
std::vector<uint64_t> fields_of(const std::string& bytes) {
  std::vector<uint64_t> fields;
  size_t at = 0;
  const auto varint = [&](uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && at < bytes.size(); shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes[at++]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  while (at < bytes.size()) {
    uint64_t tag = 0;
    uint64_t size = 0;
    if (!varint(tag) || tag >> 3 == 0) damaged();
    switch (tag & 7) {
      case 0:
        if (!varint(size)) damaged();
        size = 0;
        break;
      case 1:
        size = 8;
        break;
      case 2:
        if (!varint(size)) damaged();
        break;
      case 5:
        size = 4;
        break;
      default:
        damaged();
    }
    if (size > bytes.size() - at) damaged();
    at += size;
    fields.push_back(tag >> 3);
  }
  return fields;
}

void read_sections(std::ifstream& file, ModelFile& model) {
  const Bytes whole(file, 0, model.size);
  if (model.size < header_begin || whole.text(0, 8) != magic) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID, "it is not a LiteRT-LM file");
  }
  const auto version = whole.number<uint32_t>(8);
  if (version != known_major_version) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID, "its container has version " + std::to_string(version) +
                                              "; known is " + std::to_string(known_major_version));
  }
  const auto header_end = whole.number<uint64_t>(header_end_at);
  if (header_end > model.size) throw Error(ELIZA_ERR_BUNDLE_INVALID, "it is truncated");
  if (header_end <= header_begin || header_end - header_begin > longest_header) damaged();

  const Bytes header(file, header_begin, header_end);
  const auto system = Table::root(header).table(0);
  const auto metadata = Table::root(header).table(1);
  if (!system || !metadata) damaged();
  check_items(system->tables(0));
  bool has_metadata = false;
  bool has_tokenizer = false;
  bool has_model = false;
  for (const auto& section : metadata->tables(0)) {
    check_items(section.tables(0));
    const auto begin = section.number<uint64_t>(1);
    const auto end = section.number<uint64_t>(2);
    if (end > model.size) throw Error(ELIZA_ERR_BUNDLE_INVALID, "it is truncated");
    if (begin < header_end || begin >= end) damaged();
    const auto kind = section.number<uint8_t>(3);
    if (kind == llm_metadata) {
      has_metadata = true;
      // Without a kind of model, the runtime ends the process.
      const auto fields = fields_of(whole.text(begin, end - begin, longest_message));
      if (std::find(fields.begin(), fields.end(), llm_model_type) == fields.end()) damaged();
    }
    has_tokenizer |= kind == sentencepiece_tokenizer || kind == huggingface_tokenizer;
    if (kind == tflite_model && model_type(section) == "prefill_decode") {
      has_model = true;
      model.model_offset = begin;
    }
  }
  if (!has_metadata || !has_tokenizer || !has_model) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID,
                std::string("it has no ") + (!has_model       ? "text model"
                                             : !has_tokenizer ? "tokenizer"
                                                              : "LLM metadata"));
  }
}

}  // namespace

ModelFile find_model_file(const std::string& bundle_dir) {
  const auto path = find_only(bundle_dir, ".litertlm", "LiteRT-LM model");
  if (!path) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID,
                "bundle " + quoted(bundle_dir) + " has no text/*.litertlm file");
  }
  ModelFile model;
  model.path = *path;
  try {
    model.size = fs::file_size(*path);
    model.written = fs::last_write_time(*path);
    std::ifstream file(*path, std::ios::binary);
    read_sections(file, model);
  } catch (const std::exception& problem) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID,
                "LiteRT-LM model " + quoted(platform::utf8_of(*path)) + ": " + problem.what());
  }
  return model;
}

ModelShape model_shape(const ModelFile& model, int32_t longest) {
  constexpr char prefix[] = "prefill_";
  constexpr size_t prefix_size = sizeof prefix - 1;
  ModelShape shape;
  try {
    std::ifstream file(model.path, std::ios::binary);
    const Bytes bytes(file, model.model_offset, model.size);
    const Table root = Table::root(bytes);
    const auto graphs = root.tables(2);
    for (const auto& signature : root.tables(7)) {
      const std::string name = signature.text(2);
      if (name == "decode") {
        const auto graph = signature.number<uint32_t>(4);
        if (graph < graphs.size()) shape.cache_length = mask_width(graphs[graph], signature);
      }
      if (name.compare(0, prefix_size, prefix) != 0) continue;
      int32_t length = 0;
      std::from_chars(name.data() + prefix_size, name.data() + name.size(), length);
      if (length <= 0) continue;
      int32_t& best = shape.prefill_length;
      const bool better =
          best == 0 || (length <= longest ? best > longest || length > best : length < best);
      if (better) best = length;
    }
  } catch (const Error&) {
    return {};  // a model that the runtime reads otherwise
  }
  return shape;
}

}  // namespace eliza::litert
