#include "values/signature.h"

#include <charconv>

namespace maya::values {
namespace {

constexpr std::string_view kAnonymous = "(anonymous namespace)::";
constexpr std::string_view kLambda = "{lambda(";

bool opens(char c) { return c == '<' || c == '(' || c == '{' || c == '['; }
bool closes(char c) { return c == '>' || c == ')' || c == '}' || c == ']'; }

// The index behind the bracket that closes the one at `open`.
std::size_t behind_bracket(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t at = open; at < text.size(); ++at) {
    if (opens(text[at])) ++depth;
    if (closes(text[at]) && --depth == 0) return at + 1;
  }
  return text.size();
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::string_view last_component(std::string_view qualified) {
  if (const auto space = qualified.rfind(' '); space != qualified.npos) qualified.remove_prefix(space + 1);
  if (const auto colons = qualified.rfind("::"); colons != qualified.npos) qualified.remove_prefix(colons + 2);
  return qualified;
}

// "a::f<x>" + "(p)": the name, its template arguments and what follows them.
std::string_view parse_name(std::string_view text, Signature& into) {
  const auto bracket = text.find_first_of("<({");
  into.name = last_component(trim(text.substr(0, bracket)));
  if (bracket == text.npos) return {};
  if (text[bracket] != '<') return text.substr(bracket);
  const auto behind = behind_bracket(text, bracket);
  const auto rest = text.substr(behind);
  if (rest.starts_with("::") && !rest.starts_with("::operator()") && !rest.starts_with("::{")) {
    return parse_name(rest.substr(2), into);  // a class template's member: ns::Class<T>::kernel<..>(..)
  }
  into.templates = split_arguments(text.substr(bracket + 1, behind - bracket - 2));
  return rest;
}

}  // namespace

std::string without_anonymous_namespaces(std::string_view demangled) {
  std::string text(demangled);
  for (auto at = text.find(kAnonymous); at != text.npos; at = text.find(kAnonymous, at)) {
    text.erase(at, kAnonymous.size());
  }
  return text;
}

std::vector<std::string_view> split_arguments(std::string_view list) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t at = 0; at < list.size(); ++at) {
    if (opens(list[at])) ++depth;
    if (closes(list[at])) --depth;
    if (list[at] == ',' && depth == 0) {
      parts.push_back(trim(list.substr(start, at - start)));
      start = at + 1;
    }
  }
  if (const auto last = trim(list.substr(start)); !last.empty()) parts.push_back(last);
  return parts;
}

Signature parse_signature(std::string_view demangled) {
  Signature signature;
  const auto rest = parse_name(demangled, signature);
  if (rest.starts_with('(')) {
    signature.parameters = split_arguments(rest.substr(1, behind_bracket(rest, 0) - 2));
  }
  return signature;
}

FunctorType parse_functor(std::string_view type) {
  Signature outer;
  parse_name(type, outer);
  FunctorType functor{outer.name, outer.templates, {}, 0};
  // The lambda itself is the last component: `f(..)::{lambda()#1}::operator()() const::{lambda(float)#2}`.
  if (!type.ends_with('}')) return functor;
  const auto at = type.rfind(kLambda);
  if (at == type.npos) return functor;
  const auto open = at + kLambda.size() - 1;
  const auto behind = behind_bracket(type, open);
  functor.parameters = split_arguments(type.substr(open + 1, behind - open - 2));
  functor.lambda = 1;
  if (behind < type.size() && type[behind] == '#') functor.lambda = decimal(type.substr(behind + 1), 1);
  return functor;
}

int decimal(std::string_view text, int otherwise) {
  std::from_chars(text.data(), text.data() + text.size(), otherwise);
  return otherwise;
}

}  // namespace maya::values
