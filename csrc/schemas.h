// Which schemas of caw/ops.py the kernels here were written for: torch does not compare them, and a library built for
// others would read an integer as a tensor. caw/_ext.py looks for this text before it loads one.
#pragma once

namespace caw {
__attribute__((used)) inline const char kSchemas[] = "caw operator schemas 20;";
}  // namespace caw
