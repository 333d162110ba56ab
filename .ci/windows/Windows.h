// USearch asks for the header of Windows by this name; MinGW has it in small letters, which only Windows takes for the same.
#include <windows.h>
