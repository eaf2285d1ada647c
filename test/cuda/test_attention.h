/* test_attention.h - the cases of test_attention.cu, their inputs, and attention in double precision on the CPU. */
#ifndef TEST_ATTENTION_H
#define TEST_ATTENTION_H
#include <stdint.h>
#include <string>
#include <vector>

struct problem {
    std::string name;
    int N, H, G, d, window;
    float scale, cap, mean; /* mean: q's elements lie around 4, k's around it; 0: both around 0 */
    bool strided;           /* q, k, v in one buffer, dq, dk, dv in another */
    std::vector<int> cu;
    int docs() const { return (int)cu.size() - 1; }
    int rows() const { return cu.back(); }
    int longest() const {
        int most = 0;
        for (int i = 0; i < docs(); i++) most = cu[i + 1] - cu[i] > most ? cu[i + 1] - cu[i] : most;
        return most;
    }
};

/* bf16, [N, H d] and [N, G d]: rows behind the pack hold values too */
struct inputs {
    std::vector<uint16_t> q, k, v, dout;
};
/* of the rows that belong to documents */
struct reference {
    std::vector<double> o, lse, dq, dk, dv;
    std::vector<double> dot, dot_size; /* turn_reference's; size: of the terms, dot itself where it is larger */
};

std::vector<problem> test_problems();
std::vector<problem> speed_problems();
std::vector<problem> probe_problems();
inputs make_inputs(const problem &p);
/* stored_o: NULL, or the bf16 o [rows, H d] that the gradients start from; NULL: the exact one. */
reference compute_reference(const problem &p, const inputs &in, const std::vector<uint16_t> *stored_o);

/* Rope, as if it had turned q and k: by the float position_of(row) times frequency_of(pair). */
int position_of(const problem &p, int row);
float frequency_of(const problem &p, int pair);
/* dq and dk become those from before rope; dot: <dq, q> + <dk, k> + <dv, v> of each row. */
void turn_reference(const problem &p, const inputs &in, reference *r);
#endif
