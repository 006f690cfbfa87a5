// The last stage of a pass: hidden states, logits, approximate logits, or bounds of logits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "parts.h"
#include "screen.h"
#include "select.h"

namespace {

class Output : protected Parts {
  protected:
    Output(const Stack& stack, const Pass& pass, Team& team, Scratch& scratch, bool alone)
        : Parts(stack, pass, team, scratch, alone), reduced(scratch.reduced), panel_max(scratch.panel_max), reaches(scratch.reaches) {
        if (stack.screen) {
            reduced.resize(count, stack.screen->inputs, stack.screen->quantises());
            grow(panel_max, size_t(count) * stack.projection->panels);
        }
        if (pass.bounds) grow(reaches, count);
    }

    void finish(const Part& part) {
        if (!stack.projection) {
            each_row(part, [&](int row) {
                float* to = pass.output + rows[row].target * stack.width;
                if (stack.last.empty())
                    std::copy(x(row), x(row) + stack.width, to);
                else
                    stack.last(x(row), to);
            });
            return;
        }
        prepare(*stack.projection, &stack.last, part);
        if (pass.features)
            each_row(part, [&](int row) {
                const float* from = &input.values[size_t(row) * stack.width];
                std::copy(from, from + stack.width, pass.features + rows[row].target * stack.width);
            });
        if (pass.bounds)
            bound(part);
        else if (stack.screen)
            screen(part);
        else
            project(*stack.projection, input, pass.output, part);
        if (stack.logits_cap || !stack.ends.empty()) {
            sync();
            each_row(part, [&](int row) {
                const int count = stack.projection->outputs, whole = count / W * W;
                float* logits = pass.output + rows[row].target * count;
                for (int i = 0; stack.logits_cap && i < whole; i += W) store(logits + i, capped(load(logits + i), stack.logits_cap));
                for (int i = whole; stack.logits_cap && i < count; ++i) logits[i] = first(capped(logits[i], stack.logits_cap));
                stack.order_ends(logits);
            });
        }
        if (stack.gate) project(*stack.gate, input, pass.gates, part);
    }

  private:
    // Panels of a screened projection that are computed exactly.
    static constexpr int PROMISING = 16;


    // Logits of a large output layer for less than its weights cost: approximate ones, of the hidden state in a basis (R, D) and
    // weights for it (V, R), and exact ones in the panels with the largest of those.
    void screen(const Part& part) {
        const Linear &exact = *stack.projection, &basis = *stack.basis, &approximate = *stack.screen;
        product(basis, input, part, [&](int row, int column) { return &reduced.values[size_t(row) * basis.outputs + column]; }, keep);
        sync();
        each_row(part, [&](int row) { quantise(reduced, approximate, row); });
        sync();
        project(approximate, reduced, pass.output, part);
        sync();
        each_row(part, [&](int row) {
            float *logits = pass.output + rows[row].target * exact.outputs, *most = &panel_max[size_t(row) * exact.panels];
            for (int panel = 0, first = 0; panel < exact.panels; ++panel, first += TILE)
                most[panel] = largest(logits + first, std::min(TILE, exact.outputs - first));
            int64_t best[PROMISING];
            const int kept = std::min(PROMISING, exact.panels);
            best_few(most, exact.panels, kept, best);
            for (int each = 0; each < kept; ++each) {
                const int panel = int(best[each]);
                multiply(exact, input, {row, row + 1}, {panel, panel + 1}, [&](int, int column) { return logits + column; }, keep);
            }
        });
    }

    // Upper bounds of logits for less than their weights cost: see screen.h. Logits of the other rows.
    void bound(const Part& part) {
        const Linear& exact = *stack.projection;
        each_row(part, [&](int row) { reaches[row] = stack.plane->reach(input, row); });
        sync();
        const Range mine = independent ? part.rows : Range{0, count};
        const Range panels = independent ? Range{0, exact.panels} : portion(exact.panels, part.member, team.size);
        const int others = std::clamp(pass.bounded, mine.from, mine.to);
        stack.plane->bound(input, reaches.data(), {mine.from, others}, panels,
                           [&](int row) { return pass.bounds + rows[row].target * exact.panels; });
        multiply(exact, input, {others, mine.to}, panels,
                 [&](int row, int column) { return pass.output + rows[row].target * exact.outputs + column; }, keep);
    }

    Input& reduced;
    std::vector<float>& panel_max;
    std::vector<Reach>& reaches;
};

}  // namespace
