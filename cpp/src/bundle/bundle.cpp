#include "bundle/bundle.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "platform/paths.h"
#include "support/environment.h"
#include "support/error.h"

namespace eliza {
namespace fs = std::filesystem;
namespace {

constexpr char manifest_name[] = "eliza-1.manifest.json";

[[noreturn]] void invalid(const std::string& message) {
  throw Error(ELIZA_ERR_BUNDLE_INVALID, message);
}

bool is_projector(const fs::path& file) {
  return platform::utf8_of(file.filename()).rfind("mmproj", 0) == 0;
}

// "name-00002-of-00003.gguf": the name with its dash, the part's number, the number of parts.
const std::regex& split_pattern() {
  static const std::regex pattern(R"((.*-)(\d{5})-of-(\d{5})\.gguf)");
  return pattern;
}

bool is_later_part(const fs::path& file) {
  const std::string name = platform::utf8_of(file.filename());
  std::smatch match;
  return std::regex_match(name, match, split_pattern()) && std::stoi(match[2].str()) != 1;
}

// Anything but a regular file is refused before it is opened: opening a pipe would wait for a
// writer.
void require_readable_file(const fs::path& file, const std::string& what) {
  std::error_code problem;
  const auto status = fs::status(file, problem);
  const std::string name = what + " " + quoted(platform::utf8_of(file));
  if (!fs::exists(status)) invalid(name + " does not exist");
  if (!fs::is_regular_file(status)) invalid(name + " is not a file");
  if (!std::ifstream(file, std::ios::binary)) invalid(name + " cannot be read");
}

std::vector<fs::path> text_models(const std::string& bundle_dir) {
  std::vector<fs::path> models;
  for (const auto& file : text_entries(bundle_dir, ".gguf")) {
    if (!is_projector(file) && !is_later_part(file)) models.push_back(file);
  }
  return models;
}

// All files of the model whose first one is `model`.
std::vector<fs::path> parts_of(const fs::path& model) {
  const std::string name = platform::utf8_of(model.filename());
  std::smatch match;
  if (!std::regex_match(name, match, split_pattern())) return {model};
  std::vector<fs::path> parts = {model};
  const int count = std::stoi(match[3].str());
  for (int part = 2; part <= count; ++part) {
    std::string number = std::to_string(part);
    number.insert(0, 5 - number.size(), '0');
    parts.push_back(model.parent_path() /
                    platform::path_of(match[1].str() + number + "-of-" + match[3].str() + ".gguf"));
  }
  return parts;
}

// A manifest path as a file of the bundle; throws when it points outside.
fs::path resolve_inside(const fs::path& bundle, const std::string& entry) {
  const fs::path relative = platform::path_of(entry).lexically_normal();
  if (entry.empty() || relative.has_root_path() || *relative.begin() == "..") {
    invalid(std::string(manifest_name) + ": path " + quoted(entry) + " leaves the bundle");
  }
  return bundle / relative;
}

// The manifest's entry with the largest `ctx`, then the first; nullopt without a manifest.
std::optional<fs::path> text_model_of_manifest(const fs::path& bundle) {
  const fs::path manifest = bundle / manifest_name;
  std::error_code problem;
  if (!fs::exists(manifest, problem)) return std::nullopt;
  require_readable_file(manifest, "manifest");
  std::ifstream file(manifest, std::ios::binary);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto refuse = [&](const std::string& what) {
    invalid(quoted(platform::utf8_of(manifest)) + ": " + what);
  };
  if (json.is_discarded()) refuse("is not JSON");
  if (!json.is_object() || !json.contains("files") || !json["files"].is_object() ||
      !json["files"].contains("text") || !json["files"]["text"].is_array()) {
    refuse("has no list files.text");
  }
  std::optional<fs::path> best;
  double best_context = 0;
  for (const auto& entry : json["files"]["text"]) {
    if (!entry.is_object() || !entry.contains("path") || !entry["path"].is_string()) {
      refuse("an entry of files.text has no path");
    }
    const fs::path path = resolve_inside(bundle, entry["path"].get<std::string>());
    if (path.extension() != ".gguf" || is_projector(path)) continue;
    const bool has_context = entry.contains("ctx") && entry["ctx"].is_number();
    const double context = has_context ? entry["ctx"].get<double>() : 0;
    if (!best || context > best_context) {
      best = path;
      best_context = context;
    }
  }
  if (!best) refuse("files.text names no .gguf file");
  return best;
}

std::string names_of(const std::vector<fs::path>& files) {
  std::vector<std::string> names;
  for (const auto& file : files) names.push_back(platform::utf8_of(file.filename()));
  return joined(names);
}

}  // namespace

void check_bundle(const std::string& bundle_dir) {
  const fs::path bundle = platform::path_of(bundle_dir);
  std::error_code problem;
  const auto status = fs::status(bundle, problem);
  if (!fs::exists(status)) {
    const bool absent = !problem || problem == std::errc::no_such_file_or_directory;
    invalid("bundle directory " + quoted(bundle_dir) + ": " +
            (absent ? "does not exist" : problem.message()));
  }
  if (!fs::is_directory(status)) invalid("bundle " + quoted(bundle_dir) + " is not a directory");
  if (!fs::is_directory(bundle / "text", problem)) {
    invalid("bundle " + quoted(bundle_dir) + " has no text/ directory; its models belong there");
  }
  fs::directory_iterator(bundle / "text", problem);
  if (problem) invalid("bundle " + quoted(bundle_dir) + ": text/: " + problem.message());
}

fs::path find_text_model(const std::string& bundle_dir) {
  check_bundle(bundle_dir);
  const fs::path bundle = platform::path_of(bundle_dir);
  const auto models = text_models(bundle_dir);
  if (models.empty()) {
    invalid("bundle " + quoted(bundle_dir) + " has no text model: no text/*.gguf file");
  }
  fs::path model = models.front();
  if (models.size() > 1) {
    const auto chosen = text_model_of_manifest(bundle);
    if (!chosen) {
      invalid("bundle " + quoted(bundle_dir) + " has several text models (" + names_of(models) +
              "); keep one, or name it in " + manifest_name + " under files.text");
    }
    model = *chosen;
  }
  for (const auto& part : parts_of(model)) require_readable_file(part, "text model");
  return model;
}

bool has_text_model(const std::string& bundle_dir) noexcept {
  return !text_models(bundle_dir).empty();
}

bool has_tokenizer(const std::string& bundle_dir) noexcept {
  return !text_entries(bundle_dir, ".tokenizer").empty();
}

std::optional<fs::path> find_tokenizer(const std::string& bundle_dir) {
  return find_only(bundle_dir, ".tokenizer", "tokenizer");
}

std::optional<fs::path> find_only(const std::string& bundle_dir, const std::string& extension,
                                  const std::string& what) {
  const auto files = text_entries(bundle_dir, extension);
  if (files.empty()) return std::nullopt;
  if (files.size() > 1) {
    invalid("bundle " + quoted(bundle_dir) + " has several " + what + "s (" + names_of(files) +
            "); keep one");
  }
  require_readable_file(files.front(), what);
  return files.front();
}

std::vector<fs::path> text_entries(const std::string& bundle_dir,
                                   const std::string& extension) noexcept {
  std::vector<fs::path> entries;
  try {
    for (const auto& entry : fs::directory_iterator(platform::path_of(bundle_dir) / "text")) {
      if (entry.path().extension() == extension) entries.push_back(entry.path());
    }
    std::sort(entries.begin(), entries.end());
  } catch (...) {
    entries.clear();
  }
  return entries;
}

}  // namespace eliza
