#define VALUE 7.0f
