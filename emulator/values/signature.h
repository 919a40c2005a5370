// Reads demangled C++ names: `void ns::kernel<4, F, std::array<char*, 2ul> >(int, F, ...)`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace maya::values {

// The parts point into the text they were parsed from.
struct Signature {
  std::string_view name;  // last component, without namespaces: "kernel"
  std::vector<std::string_view> templates;
  std::vector<std::string_view> parameters;
};

// `(anonymous namespace)::` removed everywhere: it says nothing and its parentheses would mislead.
std::string without_anonymous_namespaces(std::string_view demangled);

Signature parse_signature(std::string_view demangled);

// A functor's type. For a class: its name and template arguments. For a lambda: the name and template
// arguments of the function it is written in, its own parameters, and its number there (from 1).
struct FunctorType {
  std::string_view name;
  std::vector<std::string_view> templates;
  std::vector<std::string_view> parameters;
  int lambda = 0;  // 0: not a lambda
};

FunctorType parse_functor(std::string_view type);

// "a, b<c, d>" -> {"a", "b<c, d>"}
std::vector<std::string_view> split_arguments(std::string_view list);

// The number that a template argument begins with, as "8u": 8.
int decimal(std::string_view text, int otherwise = 0);

}  // namespace maya::values
