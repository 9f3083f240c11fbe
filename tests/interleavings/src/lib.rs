//! Nothing by itself. The tests of this package compile files of the host with locks and bells in place of the real ones that let Shuttle
//! choose who goes on at each step: `queue` does so with a controller's workqueue among its threads.
