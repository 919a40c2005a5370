// The runtime's error state: one last error per thread (CUDA Runtime API, Error Handling).
#pragma once

namespace maya::cudart {

struct ErrorText {
  int code;
  const char* name;
  const char* text;
};

const ErrorText* error_text(int error);  // nullptr: unknown

// Every entry point returns through this: notes an error as the thread's last one.
int result(int error);

}  // namespace maya::cudart
