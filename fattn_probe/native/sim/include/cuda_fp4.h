// Upstream includes this header; the attention kernels use nothing of it.
#pragma once
