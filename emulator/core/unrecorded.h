#pragma once

namespace maya {

// A process that is no rank works on a device: the file that MAYA_UNRECORDED names, if it does, gets a line with the
// process' command, once (maya/launch/unrecorded.py).
void tell_unrecorded();

}  // namespace maya
