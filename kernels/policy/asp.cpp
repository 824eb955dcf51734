#include "asp.hpp"

namespace gradientflow::policy {

Answer Asp::pushed(int worker, double /*seconds*/) { return {.apply = {{worker}}, .release = {worker}}; }

Answer Asp::departed(int /*worker*/, double /*seconds*/) { return {}; }

}  // namespace gradientflow::policy
