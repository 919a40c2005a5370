#include "core/unrecorded.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "core/process.h"

namespace maya {
namespace {

std::string command() {
  if (!rank_config().trace_dir.empty()) return "a fork of the rank";
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string words{std::istreambuf_iterator<char>(file), {}};
  std::ranges::replace_if(words, [](char letter) { return letter == '\0' || letter == '\n'; }, ' ');
  return words;
}

}  // namespace

void tell_unrecorded() {
  static std::atomic<bool> told = false;
  const char* path = std::getenv("MAYA_UNRECORDED");
  if (path == nullptr || told.exchange(true)) return;
  std::ofstream(path, std::ios::app) << command() + "\n" << std::flush;
}

}  // namespace maya
