struct test_flash_attn_ext : public test_case {
    const int64_t hsk;

    test_flash_attn_ext(int64_t hsk = 128, int64_t hsv = 128, int64_t nh = 32, std::array<int64_t, 2> nr23 = {1, 1},
                        int64_t kv = 96, int64_t nb = 8, bool mask = true, bool sinks = false, float max_bias = 0.0f,
                        float logit_softcap = 0.0f, ggml_prec prec = GGML_PREC_F32, TYPES,
                        std::array<int32_t, 4> permute = {0, 1, 2, 3}REST)
        : hsk(hsk) {}
};

static std::vector<std::unique_ptr<test_case>> make_test_cases_eval() {
    std::vector<std::unique_ptr<test_case>> test_cases;
    std::default_random_engine rng(0);

    test_cases.emplace_back(new test_flash_attn_ext(64, 64, 4));

    return test_cases;
}

static std::vector<std::unique_ptr<test_case>> make_test_cases_perf() {
    std::vector<std::unique_ptr<test_case>> test_cases;

    return test_cases;
}
