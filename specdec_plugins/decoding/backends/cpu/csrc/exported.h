// Structs and functions of the C interface. The library holds their declarations as text, of which binding.py makes ctypes types.
#pragma once

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
