#include "bundle/bundle.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/error.h"
#include "test_support.h"

namespace eliza::test {
namespace {

namespace fs = std::filesystem;

constexpr char manifest_name[] = "eliza-1.manifest.json";

class BundleTest : public testing::Test {
 protected:
  void add(const std::string& file, std::string_view text = "GGUF") {
    write_file(bundle_.path() / file, text);
  }
  void add_manifest(std::string_view json) { add(manifest_name, json); }
  void add_two_models() {
    add("text/a.gguf");
    add("text/b.gguf");
  }

  // The chosen model, relative to the bundle.
  std::string chosen() {
    return find_text_model(bundle_.string()).lexically_relative(bundle_.path()).string();
  }

  // The message of the refusal that must come.
  std::string refusal() {
    try {
      const std::string model = chosen();
      ADD_FAILURE() << "accepted " << model;
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ELIZA_ERR_BUNDLE_INVALID);
      return problem.what();
    }
    return "";
  }

  void expect_refusal_with(const std::vector<std::string>& fragments) {
    const std::string message = refusal();
    for (const auto& fragment : fragments) {
      EXPECT_NE(message.find(fragment), std::string::npos) << fragment << " is not in: " << message;
    }
  }

  TemporaryDirectory bundle_;
};

std::string create_refusal(const std::string& directory) {
  try {
    check_bundle(directory);
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ELIZA_ERR_BUNDLE_INVALID);
    return problem.what();
  }
  ADD_FAILURE() << "accepted " << directory;
  return "";
}

TEST_F(BundleTest, TheOnlyModelIsChosen) {
  add("text/model.gguf");
  EXPECT_EQ(chosen(), "text/model.gguf");
}

TEST_F(BundleTest, OtherFilesAreNoModels) {
  add("text/model.gguf");
  for (const char* other : {"text/model.litertlm", "text/notes.txt", "text/x.gguf.part",
                            "text/gguf", "other.gguf", "audio/other.gguf"}) {
    add(other);
  }
  EXPECT_EQ(chosen(), "text/model.gguf");
}

TEST_F(BundleTest, ProjectorsAreNoModels) {
  add("text/mmproj-model.gguf");
  expect_refusal_with({"no text model"});
  add("text/model.gguf");
  EXPECT_EQ(chosen(), "text/model.gguf");
}

TEST_F(BundleTest, DirectoryThatDoesNotExistIsRefused) {
  const std::string missing = bundle_.string() + "/missing";
  EXPECT_NE(create_refusal(missing).find("does not exist"), std::string::npos);
  EXPECT_NE(create_refusal(missing).find(missing), std::string::npos);
}

TEST_F(BundleTest, EmptyPathIsRefused) { EXPECT_NE(create_refusal(""), ""); }

TEST_F(BundleTest, PathThatIsTooLongIsRefused) {
  EXPECT_LT(create_refusal(std::string(100000, 'x')).size(), 1000u);
  EXPECT_LT(create_refusal("/" + std::string(10000, 'y')).size(), 1000u);
}

TEST_F(BundleTest, PathThatIsNotUtf8IsRefused) { EXPECT_NE(create_refusal("\xFF\xFE/x"), ""); }

TEST_F(BundleTest, FileInsteadOfDirectoryIsRefused) {
  add("file");
  EXPECT_NE(create_refusal(bundle_.string() + "/file").find("not a directory"), std::string::npos);
}

TEST_F(BundleTest, BundleWithoutTextDirectoryIsRefused) {
  EXPECT_NE(create_refusal(bundle_.string()).find("text/"), std::string::npos);
  add("text");
  EXPECT_NE(create_refusal(bundle_.string()).find("text/"), std::string::npos);
}

TEST_F(BundleTest, EmptyTextDirectoryPassesCreateAndHasNoModel) {
  fs::create_directory(bundle_.path() / "text");
  check_bundle(bundle_.string());
  expect_refusal_with({"no text model", bundle_.string()});
}

TEST_F(BundleTest, SeveralModelsWithoutManifestAreListed) {
  add_two_models();
  expect_refusal_with({"several text models", "a.gguf", "b.gguf", manifest_name});
}

TEST_F(BundleTest, ManifestNamesOneOfSeveral) {
  add_two_models();
  add_manifest(R"({"files": {"text": [{"path": "text/b.gguf", "sha256": "00", "ctx": 4096}]}})");
  EXPECT_EQ(chosen(), "text/b.gguf");
}

TEST_F(BundleTest, LargestContextWins) {
  add_two_models();
  add("text/c.gguf");
  add_manifest(R"({"files": {"text": [{"path": "text/a.gguf", "ctx": 4096},
    {"path": "text/b.gguf", "ctx": 131072}, {"path": "text/c.gguf", "ctx": 8192}]}})");
  EXPECT_EQ(chosen(), "text/b.gguf");
}

TEST_F(BundleTest, FirstOfEqualContextsWins) {
  add_two_models();
  add("text/c.gguf");
  add_manifest(R"({"files": {"text": [{"path": "text/a.gguf", "ctx": 1},
    {"path": "text/c.gguf", "ctx": 2}, {"path": "text/b.gguf", "ctx": 2}]}})");
  EXPECT_EQ(chosen(), "text/c.gguf");
}

TEST_F(BundleTest, MissingOrOddContextCountsAsNone) {
  add_two_models();
  for (const char* odd : {"\"999999\"", "null", "[]", "true", "{}"}) {
    add_manifest(std::string(R"({"files": {"text": [{"path": "text/a.gguf", "ctx": )") + odd +
                 R"(}, {"path": "text/b.gguf", "ctx": 1}]}})");
    EXPECT_EQ(chosen(), "text/b.gguf") << odd;
  }
  add_manifest(R"({"files": {"text": [{"path": "text/b.gguf"}, {"path": "text/a.gguf"}]}})");
  EXPECT_EQ(chosen(), "text/b.gguf");
}

TEST_F(BundleTest, ManifestEntriesThatAreNoModelsAreSkipped) {
  add_two_models();
  add_manifest(R"({"files": {"text": [{"path": "text/mmproj-a.gguf", "ctx": 9},
    {"path": "text/vocab.json", "ctx": 9}, {"path": "text/a.gguf", "ctx": 1}]}})");
  EXPECT_EQ(chosen(), "text/a.gguf");
}

TEST_F(BundleTest, PathInsideTheBundleMayTakeADetour) {
  add_two_models();
  add_manifest(R"({"files": {"text": [{"path": "./audio/../text/./b.gguf"}]}})");
  EXPECT_EQ(chosen(), "text/b.gguf");
}

TEST_F(BundleTest, ManifestIsNotNeededForTheOnlyModel) {
  add("text/model.gguf");
  add_manifest("not JSON");
  EXPECT_EQ(chosen(), "text/model.gguf");
}

TEST_F(BundleTest, ManifestModelThatIsMissingIsRefused) {
  add_two_models();
  add_manifest(R"({"files": {"text": [{"path": "text/c.gguf"}]}})");
  expect_refusal_with({"text/c.gguf", "does not exist"});
}

TEST_F(BundleTest, PathsThatLeaveTheBundleAreRefused) {
  add_two_models();
  write_file(bundle_.path().parent_path() / "outside.gguf", "GGUF");
  const std::string absolute = bundle_.string() + "/text/a.gguf";
  for (const std::string& path : std::vector<std::string>{
           "../outside.gguf", "text/../../outside.gguf", "./../outside.gguf",
           "text/../text/../../" + bundle_.path().filename().string() + "/text/a.gguf", absolute,
           "/etc/x.gguf", "..", ""}) {
    add_manifest(R"({"files": {"text": [{"path": ")" + path + R"("}, {"path": "text/a.gguf"}]}})");
    expect_refusal_with({"leaves the bundle", manifest_name, path});
  }
}

class BrokenManifestTest : public BundleTest, public testing::WithParamInterface<const char*> {};

TEST_P(BrokenManifestTest, IsRefusedByName) {
  add_two_models();
  add_manifest(GetParam());
  expect_refusal_with({manifest_name});
}

INSTANTIATE_TEST_SUITE_P(
    Manifests, BrokenManifestTest,
    testing::Values("", " ", "x", "{", "{}}", "[]", "null", "7", "\"files\"", "{\"files\": null}",
                    "{\"files\": []}", "{\"files\": {}}", "{\"files\": {\"text\": {}}}",
                    "{\"files\": {\"text\": \"text/a.gguf\"}}", "{\"files\": {\"text\": []}}",
                    "{\"files\": {\"text\": [null]}}", "{\"files\": {\"text\": [\"text/a.gguf\"]}}",
                    "{\"files\": {\"text\": [{}]}}", "{\"files\": {\"text\": [{\"path\": 1}]}}",
                    "{\"files\": {\"text\": [{\"path\": null, \"ctx\": 1}]}}",
                    "{\"files\": {\"text\": [{\"path\": \"text/a.gguf\"}, 5]}}",
                    "{\"files\": {\"text\": [{\"path\": \"text/x.litertlm\"}]}}",
                    "{\"files\": {\"text\": [{\"path\": \"text/a.gguf\"}]}} trailing",
                    "{\"files\": {\"text\": [{\"path\": \"\\ud800\"}]}}",
                    "{\"files\": {\"text\": [{\"path\": \"\xFF\xFE\"}]}}",
                    "{\"files\": {\"text\": [{\"path\": \"text/a.gguf\", \"ctx\": 1e999999}]}}"));

TEST_F(BundleTest, DeeplyNestedManifestIsRefused) {
  add_two_models();
  add_manifest(std::string(1000000, '['));
  expect_refusal_with({manifest_name});
  add_manifest(std::string(1000000, '[') + std::string(1000000, ']'));
  expect_refusal_with({manifest_name});
}

TEST_F(BundleTest, ManifestThatIsADirectoryIsRefused) {
  add_two_models();
  fs::create_directory(bundle_.path() / manifest_name);
  refusal();
}

// Opening a pipe would wait for a writer: these tests would not end.
TEST_F(BundleTest, ManifestThatIsAPipeIsRefused) {
  add_two_models();
  ASSERT_EQ(mkfifo((bundle_.path() / manifest_name).c_str(), 0600), 0);
  expect_refusal_with({manifest_name, "is not a file"});
}

TEST_F(BundleTest, ModelWithAPipeForAPartIsRefused) {
  add("text/model-00001-of-00002.gguf");
  ASSERT_EQ(mkfifo((bundle_.path() / "text/model-00002-of-00002.gguf").c_str(), 0600), 0);
  expect_refusal_with({"model-00002-of-00002.gguf", "is not a file"});
}

TEST_F(BundleTest, PipeThatClaimsToHaveNoPartsIsRefused) {
  fs::create_directories(bundle_.path() / "text");
  ASSERT_EQ(mkfifo((bundle_.path() / "text/model-00001-of-00000.gguf").c_str(), 0600), 0);
  expect_refusal_with({"model-00001-of-00000.gguf", "is not a file"});
}

TEST_F(BundleTest, ModelWithAMissingPartIsRefused) {
  add("text/model-00001-of-00002.gguf");
  expect_refusal_with({"model-00002-of-00002.gguf", "does not exist"});
}

TEST_F(BundleTest, PartsOfASplitModelCountAsOne) {
  for (const char* part : {"00002", "00003", "00001"}) {
    add(std::string("text/model-") + part + "-of-00003.gguf");
  }
  EXPECT_EQ(chosen(), "text/model-00001-of-00003.gguf");
}

TEST_F(BundleTest, SplitModelAndAnotherAreSeveral) {
  add("text/model-00001-of-00002.gguf");
  add("text/model-00002-of-00002.gguf");
  add("text/other.gguf");
  expect_refusal_with({"several text models", "model-00001-of-00002.gguf", "other.gguf"});
}

TEST_F(BundleTest, SplitModelWithoutItsFirstPartIsNoModel) {
  add("text/model-00002-of-00003.gguf");
  expect_refusal_with({"no text model"});
}

TEST_F(BundleTest, DirectoryNamedLikeAModelIsRefused) {
  fs::create_directories(bundle_.path() / "text" / "x.gguf");
  expect_refusal_with({"x.gguf", "not a file"});
}

TEST_F(BundleTest, DanglingLinkIsRefused) {
  fs::create_directory(bundle_.path() / "text");
  fs::create_symlink("nowhere", bundle_.path() / "text" / "x.gguf");
  expect_refusal_with({"x.gguf", "does not exist"});
}

TEST_F(BundleTest, LinkLoopIsRefused) {
  fs::create_directory(bundle_.path() / "text");
  fs::create_symlink("x.gguf", bundle_.path() / "text" / "x.gguf");
  expect_refusal_with({"x.gguf"});
}

TEST(BundlePathTest, SpacesAndOtherAlphabetsAreFine) {
  const TemporaryDirectory bundle("na\u00efve \u65e5\u672c\u8a9e \U0001f600 bundle'\"%s");
  write_file(bundle.path() / "text" / "m\u00f6del \u4e16.gguf", "GGUF");
  check_bundle(bundle.string());
  EXPECT_EQ(find_text_model(bundle.string()).filename().u8string(), "m\u00f6del \u4e16.gguf");
}

TEST(BundlePathTest, RelativeAndSlashedPathsAreFine) {
  const TemporaryDirectory bundle;
  write_file(bundle.path() / "text" / "model.gguf", "GGUF");
  EXPECT_EQ(find_text_model(bundle.string() + "/").filename(), "model.gguf");
  EXPECT_EQ(find_text_model(bundle.string() + "//./text/..").filename(), "model.gguf");
}

TEST_F(BundleTest, TextEntriesAreSortedAndNeverThrow) {
  for (const char* file : {"text/c.bin", "text/a.bin", "text/b.bin", "text/.bin", "text/d.BIN"}) {
    add(file);
  }
  std::vector<std::string> names;
  for (const auto& entry : text_entries(bundle_.string(), ".bin")) {
    names.push_back(entry.filename().string());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a.bin", "b.bin", "c.bin"}));
  EXPECT_TRUE(text_entries(bundle_.string(), ".none").empty());
  EXPECT_TRUE(text_entries("/no/such/bundle", ".bin").empty());
  EXPECT_TRUE(text_entries("\xFF", ".bin").empty());
}

}  // namespace
}  // namespace eliza::test
