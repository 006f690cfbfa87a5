// Structs and functions of the C interface. The library holds their declarations as text, of which binding.py makes ctypes types.
#pragma once

#include <exception>
#include <string>

namespace {

// One declaration a line, in the order of their definitions.
inline std::string& declarations() {
    static std::string all;
    return all;
}

struct Declaration {
    explicit Declaration(const char* text) { declarations().append(text).append("\n"); }
};

// Exceptions must not cross the C interface. Only allocations of memory and threads can fail.
template <class Call>
int status_of(Call&& call) {
    try {
        call();
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}
template <class Make>
auto made(Make&& make) -> decltype(make()) {
    try {
        return make();
    } catch (const std::exception&) {
        return nullptr;
    }
}

}  // namespace

// A struct that Python fills in. Its fields are numbers, pointers and earlier structs.
#define SHARED_STRUCT(name, ...) \
    struct name {                \
        __VA_ARGS__              \
    };                           \
    const Declaration name##_declaration("struct " #name "{" #__VA_ARGS__ "}");

// A function that Python calls; what follows is its body.
#define EXPORTED(result, name, ...)                                                   \
    static const Declaration name##_declaration(#result " " #name "{" #__VA_ARGS__ "}"); \
    extern "C" result specdec_##name(__VA_ARGS__)
