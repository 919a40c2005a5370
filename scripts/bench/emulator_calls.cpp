// What one interposed call costs beyond an empty one. Run under the emulator by scripts/bench/emulator.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

extern "C" {
struct dim3 {
  unsigned x, y, z;
};
int maya_begin_rank(const char* config);
void** __cudaRegisterFatBinary(void* image);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
int cudaLaunchKernel(const void*, dim3, dim3, void**, unsigned long, void*);
int cudaStreamCreate(void**);
int cudaEventCreateWithFlags(void**, unsigned);
int cudaEventRecord(void*, void*);
int cudaEventQuery(void*);
int cudaMalloc(void**, unsigned long);
int cudaMemsetAsync(void*, int, unsigned long, void*);
}

namespace {

char kernel_stub;  // its address is the kernel's host function

[[gnu::noinline]] int empty_call(const void* function, void** args) {
  asm volatile("" : : "r"(function), "r"(args) : "memory");
  return 0;
}

// Median over batches of the mean ns of a call.
template <class Function>
double median_ns(Function&& function) {
  constexpr int kBatches = 400, kCalls = 500;
  std::vector<double> means;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) function(call);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    means.push_back(took.count() / kCalls);
  }
  std::nth_element(means.begin(), means.begin() + kBatches / 2, means.end());
  return means[kBatches / 2];
}

}  // namespace

int main(int, char** argv) {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a rank begins long after the library's start
  if (maya_begin_rank(argv[1]) != 0) return 1;
  __cudaRegisterFunction(__cudaRegisterFatBinary(nullptr), &kernel_stub, nullptr, "_Z4stepPfi", -1, nullptr, nullptr,
                         nullptr, nullptr, nullptr);
  void *stream = nullptr, *event = nullptr, *memory = nullptr;
  cudaStreamCreate(&stream);
  cudaEventCreateWithFlags(&event, 2);
  cudaMalloc(&memory, 1 << 20);
  int count = 0;
  void* args[] = {&memory, &count};
  const double empty = median_ns([&](int) { return empty_call(&kernel_stub, args); });
  const auto show = [&](const char* name, double ns) {
    std::printf("%-34s %8.1f ns  %8.1f ns beyond an empty call (%.1f ns), ratio %.0f\n", name, ns, ns - empty, empty,
                ns / empty);
  };
  show("kernel launch, one shape",
       median_ns([&](int) { return cudaLaunchKernel(&kernel_stub, {1024, 1, 1}, {128, 1, 1}, args, 0, stream); }));
  show("kernel launch, 500 shapes", median_ns([&](int call) {
         return cudaLaunchKernel(&kernel_stub, {static_cast<unsigned>(call) + 1, 1, 1}, {128, 1, 1}, args, 0, stream);
       }));
  show("event record", median_ns([&](int) { return cudaEventRecord(event, stream); }));
  show("event query", median_ns([&](int) { return cudaEventQuery(event); }));
  show("memset of 1 MiB", median_ns([&](int) { return cudaMemsetAsync(memory, 0, 1 << 20, stream); }));
}
