// Upstream includes this header; the attention kernels use nothing from it.
#pragma once
