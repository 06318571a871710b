/*!
 * \file ir/report.h
 * \brief Counts what a pass did, and how often it skipped something for which reason.
 *
 *     Count("all_gather");                          // one more
 *     Skip("defer_reductions", "used elsewhere");   // one more, for this reason
 *
 * Numbers belong to the pass that runs in this thread. Python gets them when it ends, for its log
 * line and for who collects them (python/distir_ext/native/reports.py).
 */
#ifndef DISTIR_IR_REPORT_H_
#define DISTIR_IR_REPORT_H_

#include <functional>
#include <string>

#include "ir/node.h"

namespace distir::ir {

/*! \brief Says that the running pass did something; nothing where no pass runs. */
void Count(const std::string& what, int64_t times = 1);
/*! \brief Says that the running pass left something as it was, and why. */
void Skip(const std::string& what, const std::string& why, int64_t times = 1);

/*! \brief Whose report is sent: none of what is only tried. */
enum class ReportOf { kEvery, kThoseThatDoSomething, kNone };

/*! \brief Applies a pass and sends its report. A pass within a pass has a report of its own. */
IRModule RunReported(const std::string& pass, const IRModule& mod,
                     const std::function<IRModule(const IRModule&)>& apply,
                     ReportOf which = ReportOf::kEvery);

}  // namespace distir::ir
#endif  // DISTIR_IR_REPORT_H_
