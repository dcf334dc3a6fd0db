#include "../cpu/dispatch.cpp"
