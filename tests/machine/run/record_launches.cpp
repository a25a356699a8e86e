#include "timer.h"
#include <cstdio>
void launch_all();
void launch_graph_and_capture();
int main(int argc, char **) {
    if (argc == 1) {
        launch_all();
        return 0;
    }
    Timer timer;
    timer.measure(launch_graph_and_capture);
    timer.measure(launch_graph_and_capture);
    std::printf("%s %g %g\n", timer.clock(), timer.seconds()[0], timer.seconds()[1]);
    timer.measure([] {});
    std::printf("%s\n", timer.clock());
}
